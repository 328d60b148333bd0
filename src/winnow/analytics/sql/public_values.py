"""The union of what owners have in public columns, from one sum that does not say who has what.

Every owner puts its values into an invertible Bloom lookup table (Goodrich and Mitzenmacher, 2011): each value is added
to three cells, which hold how many values there are, a checksum, and the text itself as numbers. Such tables add up.
Cells of the sum that hold one value are read and taken out of its other cells, until all are empty. A value that n
owners have stands there n times, so it is told how many have it.
"""

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum
from winnow.analytics.sql.owner_rows import Group
from winnow.analytics.sql.statement_limits import MAX_PUBLIC_VALUES
from winnow.core import DataError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

HASHES = 3
WORD = 5
"""Bytes of a number: a sum of them over a million owners stays below 2⁶²."""
MAX_TEXT = 400
CAPACITIES = (16, 64, 256, 1_024, *[MAX_PUBLIC_VALUES] * 4)
"""Different values that each attempt has room for. Whether one succeeds depends on all owners' values together, so no
length shows how many an owner has.
"""


def open_public_values(local: Callable[["OwnerTable"], list[Group]], what: str = "GROUP BY") -> Program[list[Group]]:
    """The values that any owner has, sorted. Opened are how many owners have long ones, and the values."""
    found = yield from open_counted_values(local, what)
    return [group for group, _ in found]


def open_counted_values(
    local: Callable[["OwnerTable"], list[Group]], what: str = "GROUP BY"
) -> Program[list[tuple[Group, int]]]:
    """Each value beside how many owners have it; `what` names them in errors."""

    def texts(table: "OwnerTable") -> list[bytes]:
        return [json.dumps(each, ensure_ascii=False).encode() for each in local(table)]

    def sizes(table: "OwnerTable") -> NDArray[np.int64]:
        found = texts(table)
        lengths = np.array([min(len(each), MAX_TEXT + 1) for each in found] or [0])
        longer = [(lengths > limit).any() for limit in range(0, MAX_TEXT + 1, WORD)]
        return np.array([len(found) > MAX_PUBLIC_VALUES, *longer], np.int64)

    opened = yield Sum(label="how long public values are", local=sizes, length=2 + MAX_TEXT // WORD)
    words = sum(int(each) > 0 for each in opened[1:])
    if words > MAX_TEXT // WORD:
        raise DataError(f"{what}: a public value is longer than {MAX_TEXT} letters; ask for shorter texts")
    if opened[0] > 0:
        raise DataError(f"{what}: an owner has more than {MAX_PUBLIC_VALUES:,} public values; ask for fewer")
    for attempt, capacity in enumerate(CAPACITIES if words else ()):
        cells = HASHES * (9 * capacity // 20 + 4)

        def table_of(table: "OwnerTable", attempt: int = attempt, cells: int = cells) -> NDArray[np.int64]:
            filled = np.zeros((cells, words + 2), np.int64)
            for text in texts(table):
                filled[_places(text, cells, attempt)] += _entry(text, words)
            return filled.reshape(-1)

        label = f"public values, attempt {attempt + 1}" if attempt else "public values"
        opened = yield Sum(label=label, local=table_of, length=cells * (words + 2))
        found = _decoded(opened.reshape(cells, words + 2), words, attempt)
        if found is not None:
            return sorted(found, key=lambda one: [(each is None, each or "") for each in one[0]])
    if not words:
        return []
    raise DataError(
        f"{what}: the owners' public values could not be read; ask for fewer if they are more than "
        f"{MAX_PUBLIC_VALUES:,}"
    )


def _places(text: bytes, cells: int, attempt: int) -> list[int]:
    """A cell in each third of the table."""
    third = cells // HASHES
    digest = blake2b(text, digest_size=8 * HASHES, salt=attempt.to_bytes(8, "big")).digest()
    numbers = (int.from_bytes(digest[8 * each : 8 * each + 8], "big") for each in range(HASHES))
    return [third * each + number % third for each, number in enumerate(numbers)]


def _entry(text: bytes, words: int) -> NDArray[np.int64]:
    check = int.from_bytes(blake2b(text, digest_size=WORD, person=b"check").digest(), "big")
    padded = text.ljust(words * WORD, b"\0")
    numbers = [int.from_bytes(padded[WORD * each : WORD * each + WORD], "big") for each in range(words)]
    return np.array([1, check, *numbers], np.int64)


def _decoded(cells: NDArray[np.object_], words: int, attempt: int) -> list[tuple[Group, int]] | None:
    left, found = cells.copy(), list[tuple[Group, int]]()
    waiting = list(range(len(left)))
    while waiting:
        place = waiting.pop()
        cell = left[place]
        text = _single(cell, words)
        places = [] if text is None else _places(text, len(left), attempt)
        if text is None or place not in places:  # a value in a cell that is not its own is somebody's lie
            continue
        entry = cell.copy()
        found.append((_group(text), int(cell[0])))
        for each in places:
            left[each] = left[each] - entry
            waiting.append(each)
    return found if not any(each != 0 for each in left.reshape(-1)) else None


def _group(text: bytes) -> Group:
    """As an owner sent it."""
    try:
        group = json.loads(text)
        json.dumps(group, ensure_ascii=False).encode()  # half of a letter (\\ud800) is no text
    except (ValueError, RecursionError):
        group = None
    if not isinstance(group, list) or not all(each is None or isinstance(each, str) for each in group):
        raise DataError("an owner sent a public value that cannot be read")
    return tuple(group)


def _single(cell: Sequence[int], words: int) -> bytes | None:
    """The text of a cell that holds one value, however often."""
    count = int(cell[0])
    if count <= 0 or any(int(each) % count or int(each) < 0 for each in cell):
        return None
    numbers = [int(each) // count for each in cell[2:]]
    if any(each >= 1 << (8 * WORD) for each in numbers):
        return None
    text = b"".join(each.to_bytes(WORD, "big") for each in numbers).rstrip(b"\0")
    return text if list(_entry(text, words)[1:]) == [int(each) // count for each in cell[1:]] else None
