"""Rows with every type and every kind of gap, and what Winnow should make of them."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

COLUMNS = {
    "amount": {"level": "protected", "type": "number"},
    "visits": {"level": "protected", "type": "integer"},
    "ward": {"level": "public", "type": "text"},
    "day": {"level": "protected", "type": "date"},
    "well": {"level": "protected", "type": "boolean"},
}
LETTERS = "aZé猫 \t\n,\"'1;|\\.-"


def _or_missing(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


moments = st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2100-01-01"))
midnights = moments.map(lambda moment: moment.replace(hour=0, minute=0, second=0, microsecond=0))
a_row = st.tuples(
    _or_missing(st.floats(allow_nan=False, allow_infinity=False)),
    _or_missing(st.integers(-(2**62), 2**62)),
    _or_missing(st.text(LETTERS, max_size=6)),
    _or_missing(moments | midnights),
    _or_missing(st.booleans()),
)


def expected(cells: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Text without spaces around it; empty text is missing."""
    return [
        {"amount": amount, "visits": visits, "ward": (ward and ward.strip()) or None, "day": day, "well": well}
        for amount, visits, ward, day, well in cells
    ]


def days(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp() / 86_400
