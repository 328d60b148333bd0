"""Which words a type allows."""

from typing import Any, Literal, get_args, get_origin


def literal_words(annotation: Any) -> list[str | int]:
    """Those of all literals in a type: `tuple[Literal["a", "b"], ...] | None` allows a and b."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for part in get_args(annotation) for word in literal_words(part)]
