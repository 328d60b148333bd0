"""The experiment where no configuration is given: in Python, and for a file of data in the place of one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winnow.data.file_formats import name_from_file

DEFAULTS: Mapping[str, Any] = {
    "name": "python",
    "rounds": 30,
    "data": {"clients": 20},
    "model": {"name": "mlp"},
    "local": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "batch_size": 16, "epochs": 2},
}


def defaults_for_file(path: Path) -> dict[str, Any]:
    """The defaults with the data of this file."""
    name = name_from_file(path)
    return {**DEFAULTS, "name": name, "data": {**DEFAULTS["data"], "name": name, "path": str(path)}}
