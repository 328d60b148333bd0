"""The files of this package: the paper's values, the tables' rows, our notes, and preliminary set-ups."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read_package_toml(name: str) -> dict[str, Any]:
    """A file's tables."""
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


def read_note(*path: str) -> str:
    """The most particular note on a table or figure, a group or an algorithm; empty where there is none."""
    place, found = read_package_toml("notes.toml"), ""
    for key in path:
        place = place.get(key, {})
        found = place.get("note", found)
    return found
