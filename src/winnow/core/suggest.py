"""What a user may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, choices: Iterable[str], *, at_most: int | None = None) -> str:
    """What to write instead: the nearest choice first, then all of them, or `at_most` so many."""
    valid = sorted(choices)
    near = get_close_matches(word, valid, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    more = ", …" if at_most is not None and len(valid) > at_most else ""
    return f"{hint}valid: {', '.join(valid[:at_most])}{more}"
