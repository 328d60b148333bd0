"""The settings of tasks as JSON and back, checked by their types."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from winnow.deploy.wire.errors import WireError
from winnow.learn.handlers import AssessSettings, JudgeSettings, ProfileSettings, TrainSettings, ValueSettings

KINDS: Mapping[str, type] = {
    "train": TrainSettings,
    "profile": ProfileSettings,
    "value": ValueSettings,
    "assess": AssessSettings,
    "judge": JudgeSettings,
}
"""What the settings of a task are, by the task's name; those of other tasks are plain values."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode_settings(settings: object) -> bytes:
    kind: Any = Any if settings is None else type(settings)
    return _adapter(kind).dump_json(settings)


def decode_settings(name: str, data: bytes, more: Mapping[str, type] | None = None) -> Any:
    """The settings of a task of this name; `more` are the types of tasks that an algorithm's parts add."""
    try:
        return _adapter({**KINDS, **(more or {})}.get(name, Any)).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise WireError(f"the settings of a task {name!r} are not understood: {where}: {first['msg']}") from error
