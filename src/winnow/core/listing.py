"""Names in a line of text."""

from collections.abc import Sequence


def listed(names: Sequence[str], at_most: int = 5) -> str:
    """With commas between them; of more than so many, the rest is counted."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
