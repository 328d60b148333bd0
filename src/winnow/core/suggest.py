"""What a user may have meant."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MOST_MEANT = 3
"""As many choices may be equally near; if more are, none of them is what was meant."""


def suggest(word: str, choices: Iterable[str], *, at_most: int | None = None) -> str:
    """What to write instead: the nearest choice, or where none is near all of them (or `at_most` so many)."""
    valid = sorted(choices)
    near = _nearest(word, valid)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    more = ", …" if at_most is not None and len(valid) > at_most else ""
    return f"valid: {_listed(valid[:at_most])}{more}"


def _nearest(word: str, valid: list[str]) -> list[str]:
    """The choices that are near, and none nearer than another; no more than a few."""
    near = get_close_matches(word, valid, n=max(1, len(valid)))
    likeness = [SequenceMatcher(None, each, word).ratio() for each in near]
    nearest = sorted(each for each, ratio in zip(near, likeness, strict=True) if ratio == likeness[0])
    return nearest if len(nearest) <= MOST_MEANT else []


def _listed(names: Iterable[str]) -> str:
    """Names with commas between them, in quotes if any could be read as a number, as layers of a Sequential can."""
    words = list(names)
    quoted = any(word[:1].isdecimal() for word in words)
    return ", ".join(repr(word) if quoted else word for word in words)
