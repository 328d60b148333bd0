"""Docstrings list arguments in two columns, which is best to read in a terminal; a page shows them as a list."""

import re
from typing import Any

from griffe import Extension, Object

COLUMNS = re.compile(r"^(\w+) {2,}(\S.*(?:\n {4,}\S.*)*)", flags=re.MULTILINE)


class ArgumentLists(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = COLUMNS.sub(_item, obj.docstring.value)


def _item(found: re.Match[str]) -> str:
    text = " ".join(found[2].split())
    return f"- `{found[1]}`: {text}"
