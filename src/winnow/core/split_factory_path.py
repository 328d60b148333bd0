"""How a configuration names the user's own code: `file.py:function`, or the file alone."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

OWN_CODE_KEYS = (("model", "factory"), ("model", "text_encoder"), ("encode", "name"))
"""Where a configuration may name own code."""

_OWN_CODE = re.compile(r".+\.py(:[A-Za-z_]\w*)?")


def is_own_code(name: str) -> bool:
    """Whether a name stands for a file rather than for something that comes with Winnow."""
    return _OWN_CODE.fullmatch(name) is not None


def own_code_names(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Section, key and name of the own code that a configuration's table names."""
    for section, key in OWN_CODE_KEYS:
        held = table.get(section)
        name = held.get(key) if isinstance(held, Mapping) else None
        if isinstance(name, str) and (key == "factory" or is_own_code(name)):
            yield section, key, name


def split_factory(factory: str) -> tuple[str, str]:
    """The file, and the name of a function or class in it; without a name the file has only one."""
    file, _, name = factory.rpartition(":")
    return (factory, "") if name.endswith(".py") else (file, name)
