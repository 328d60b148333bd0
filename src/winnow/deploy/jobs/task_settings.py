"""The settings of tasks as JSON and back, checked by their types."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from winnow.deploy.wire.errors import WireError


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def encode_settings(settings: object) -> bytes:
    kind: Any = Any if settings is None else type(settings)
    return _adapter(kind).dump_json(settings)


def decode_settings(name: str, data: bytes, kinds: Mapping[str, type]) -> Any:
    """The settings of a task of this name; `kinds` maps names to types, others are plain values."""
    try:
        return _adapter(kinds.get(name, Any)).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise WireError(f"invalid settings of task {name!r}: {where}: {first['msg']}") from error
