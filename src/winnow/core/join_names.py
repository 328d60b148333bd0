"""Names and numbers of things in a line of text."""

from collections.abc import Sequence


def listed(names: Sequence[str], at_most: int = 5) -> str:
    """With commas between them, or semicolons where they have commas; of more than so many, the rest is counted."""
    between = "; " if any(", " in name for name in names) else ", "
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return between.join(names[:at_most]) + more


def counted(number: int, noun: str) -> str:
    """So many of something: "1 client", "1,250 clients"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
