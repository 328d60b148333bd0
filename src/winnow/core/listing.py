"""Names in a line of text."""

from collections.abc import Sequence


def listed(names: Sequence[str], at_most: int = 5, between: str = ", ") -> str:
    """With commas between them, or what names with commas need; of more than so many, the rest is counted."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return between.join(names[:at_most]) + more
