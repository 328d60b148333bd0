"""The cells of a file or database as typed columns: the same declaration gives the same cells from every source.

Text is read without spaces around it, and empty text is missing. In columns of numbers, dates and booleans the usual
words for a missing value (NA, null, NaN, …) are missing too. No message quotes a cell: it may travel to other parties.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as arrow
from pyarrow import compute

from winnow.analytics.tables.declaration import ColumnDeclaration, ColumnType
from winnow.core import DataError
from winnow.data.tables import MISSING, ROWS_LOOKED_AT

Cells: TypeAlias = arrow.ChunkedArray
ARROW_TYPES: dict[ColumnType, arrow.DataType] = {
    "number": arrow.float64(),
    "integer": arrow.int64(),
    "text": arrow.string(),
    "date": arrow.timestamp("us"),
    "boolean": arrow.bool_(),
}
KINDS: dict[ColumnType, str] = {
    "number": "a number",
    "integer": "a whole number",
    "text": "text",
    "date": "a date",
    "boolean": "true or false",
}
PLURALS: dict[ColumnType, str] = {
    "number": "numbers",
    "integer": "whole numbers",
    "text": "text",
    "date": "dates",
    "boolean": "true or false",
}
NOT_WHOLE = "a number that is not whole, or too large"
_WORDS = arrow.array([each for each in MISSING if each])
_TRUE, _FALSE = arrow.array(["true", "t", "1"]), arrow.array(["false", "f", "0"])
_MAX_EXACT = 2.0**53


def typed_column(cells: Cells, column: ColumnDeclaration, name: str, where: str) -> tuple[Cells, ColumnType | None]:
    """The column, and its type: None where it is not declared and all cells are missing."""
    cells = _plain(cells, name, where)
    declared = column.known_type
    kind = declared or _type_of_first(cells)
    if kind is None:
        return arrow.chunked_array([arrow.nulls(len(cells))]), None
    if arrow.types.is_null(cells.type):
        return arrow.chunked_array([arrow.nulls(len(cells), ARROW_TYPES[kind])]), kind
    convert = _converter(cells.type, kind)
    try:
        return convert(cells), kind
    except arrow.ArrowInvalid:
        row = _first_fault(cells, convert)
        held = _kind_of_cell(cells, row, kind)
        if held in KINDS.values():
            held += f", not {KINDS[kind]}" if declared else f", and rows before it hold {PLURALS[kind]}"
        fitting = "number" if held == NOT_WHOLE else "text"
        raise DataError(
            f"{where}: column '{name}', data row {row + 1:,} holds {held}; "
            f'correct the row, or declare the column with type = "{fitting}"'
        ) from None


def _plain(cells: Cells, name: str, where: str) -> Cells:
    """One of null, boolean, int64, uint64, float64, timestamp[us] or string without empty text."""
    if arrow.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    kind = cells.type
    types = arrow.types
    if types.is_null(kind) or types.is_boolean(kind):
        return cells
    if types.is_unsigned_integer(kind):
        return cells.cast(arrow.uint64())
    if types.is_integer(kind):
        return cells.cast(arrow.int64())
    if types.is_floating(kind) or types.is_decimal(kind):
        numbers = cells.cast(arrow.float64(), safe=False)
        return compute.if_else(compute.is_nan(numbers), arrow.scalar(None, arrow.float64()), numbers)
    if types.is_date(kind) or types.is_timestamp(kind):
        zoned = types.is_timestamp(kind) and kind.tz is not None
        moments = cells.cast(arrow.timestamp("us", "UTC"), safe=False) if zoned else cells
        return moments.cast(arrow.timestamp("us"), safe=False)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        text = compute.utf8_trim_whitespace(cells.cast(arrow.string()))
        return _without(text, compute.equal(text, ""))
    raise DataError(f"{where}: column '{name}' holds {kind}; only numbers, text, dates and booleans can be declared")


def _without(cells: Cells, missing: Cells) -> Cells:
    return compute.if_else(missing, arrow.scalar(None, cells.type), cells)


def _without_words(text: Cells) -> Cells:
    return _without(text, compute.is_in(text, value_set=_WORDS))


def _type_of_first(cells: Cells) -> ColumnType | None:
    """The type that the first cells have which are not missing. Whole numbers are numbers: others may follow."""
    types = arrow.types
    if types.is_string(cells.type):
        first = cells.drop_null()[:ROWS_LOOKED_AT]
        if len(first) and not len(_without_words(first).drop_null()):
            first = cells.drop_null()
        return _type_of_text(_without_words(first).drop_null())
    if not len(cells.drop_null()):
        return None
    return "boolean" if types.is_boolean(cells.type) else "date" if types.is_timestamp(cells.type) else "number"


def _type_of_text(text: Cells) -> ColumnType | None:
    if not len(text):
        return None
    if compute.all(compute.is_in(compute.utf8_lower(text), value_set=arrow.array(["true", "false"]))).as_py():
        return "boolean"
    for kind in ("number", "date"):
        try:
            _converter(text.type, kind)(text)
        except arrow.ArrowInvalid:
            continue
        return kind
    return "text"


def _converter(given: arrow.DataType, wanted: ColumnType) -> Callable[[Cells], Cells]:
    """What turns plain cells into the wanted type, and raises ArrowInvalid where a cell does not fit."""
    types = arrow.types
    if types.is_string(given):
        return _FROM_TEXT[wanted]
    dates = types.is_timestamp(given)
    if wanted == "text":
        return _dates_to_text if dates else _floats_to_text if types.is_floating(given) else _to_text
    if dates != (wanted == "date"):
        return _refuse
    if wanted == "boolean":
        return _to_boolean
    if wanted == "number":
        return lambda cells: _finite(cells.cast(arrow.float64(), safe=False))
    return _whole if types.is_floating(given) else lambda cells: cells.cast(ARROW_TYPES[wanted])


def _refuse(cells: Cells) -> Cells:
    if cells.null_count < len(cells):
        raise arrow.ArrowInvalid
    return cells


def _finite(numbers: Cells) -> Cells:
    if compute.any(compute.is_inf(numbers)).as_py():
        raise arrow.ArrowInvalid
    return numbers


def _whole(numbers: Cells) -> Cells:
    if compute.any(compute.greater(compute.abs(_finite(numbers)), _MAX_EXACT)).as_py():
        raise arrow.ArrowInvalid
    return numbers.cast(arrow.int64())


def _text_to_numbers(text: Cells) -> Cells:
    numbers = _without_words(text).cast(arrow.float64())
    return _finite(_without(numbers, compute.is_nan(numbers)))


def _text_to_whole(text: Cells) -> Cells:
    try:
        return _without_words(text).cast(arrow.int64())
    except arrow.ArrowInvalid:
        return _whole(_text_to_numbers(text))


def _text_to_dates(text: Cells) -> Cells:
    text = _without_words(text)
    try:
        return text.cast(arrow.timestamp("us"))
    except arrow.ArrowInvalid:
        return text.cast(arrow.timestamp("us", "UTC")).cast(arrow.timestamp("us"))


def _text_to_boolean(text: Cells) -> Cells:
    lower = compute.utf8_lower(_without_words(text))
    true, false = compute.is_in(lower, value_set=_TRUE), compute.is_in(lower, value_set=_FALSE)
    if not compute.all(compute.or_(compute.or_(true, false), lower.is_null())).as_py():
        raise arrow.ArrowInvalid
    return _without(true, lower.is_null())


def _to_boolean(cells: Cells) -> Cells:
    known = compute.is_in(cells.drop_null(), value_set=arrow.array([0, 1]).cast(cells.type))
    if compute.all(known).as_py() is False:
        raise arrow.ArrowInvalid
    return cells.cast(arrow.bool_())


def _to_text(cells: Cells) -> Cells:
    return cells.cast(arrow.string())


def _floats_to_text(numbers: Cells) -> Cells:
    """1.0 is written as 1, as in a CSV file of whole numbers with gaps."""
    texts = (
        None if each is None else str(int(each)) if each.is_integer() else repr(each)
        for each in _finite(numbers).to_pylist()
    )
    return arrow.chunked_array([arrow.array(list(texts), arrow.string())])


def _dates_to_text(moments: Cells) -> Cells:
    days = compute.all(compute.equal(moments, compute.floor_temporal(moments, unit="day"))).as_py()
    return compute.strftime(moments, format="%Y-%m-%d" if days is not False else "%Y-%m-%d %H:%M:%S")


_FROM_TEXT: dict[ColumnType, Callable[[Cells], Cells]] = {
    "number": _text_to_numbers,
    "integer": _text_to_whole,
    "text": lambda text: text,
    "date": _text_to_dates,
    "boolean": _text_to_boolean,
}


def _first_fault(cells: Cells, convert: Callable[[Cells], Cells]) -> int:
    """The first row that cannot be converted, by halves."""
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(cells[low:middle])
            low = middle
        except arrow.ArrowInvalid:
            high = middle
    return low


def _kind_of_cell(cells: Cells, row: int, wanted: ColumnType) -> str:
    cell: Any = cells[row : row + 1]
    kind = _type_of_first(cell)
    if wanted in ("number", "integer") and kind == "number":
        number = _without_words(cell).cast(arrow.float64()) if arrow.types.is_string(cell.type) else cell
        return NOT_WHOLE if compute.is_finite(number)[0].as_py() else "an infinite number"
    return KINDS[kind or "text"]
