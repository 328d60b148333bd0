"""The experiment where no configuration is given: in Python, and for a file of data in the place of one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow.data.file_formats import name_from_file, own_file_type

DEFAULTS: Mapping[str, Any] = {
    "name": "python",
    "rounds": 30,
    "model": {"name": "mlp"},
    "local": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "batch_size": 16, "epochs": 2},
}


DEFAULT_CLIENTS = 20
"""Not among the defaults above: there, it would look like a choice that a user made."""


def is_without_config(preset_or_file: str | Path | Mapping[str, Any]) -> bool:
    """Whether no configuration was given: these are the defaults, or a file of data."""
    if isinstance(preset_or_file, Mapping):
        return preset_or_file is DEFAULTS
    return own_file_type(Path(preset_or_file)) is not None


def defaults_for_file(path: Path) -> dict[str, Any]:
    """The defaults with the data of this file."""
    name = name_from_file(path)
    return {**DEFAULTS, "name": name, "data": {"name": name, "path": str(path)}}
