"""Rows that are given to a model to predict from."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from winnow.core import DataError


def columns_of(rows: Any) -> Mapping[str, Any]:
    """Of a data frame, a mapping of columns, or a list of records."""
    if isinstance(rows, list):
        return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    if not hasattr(rows, "__getitem__") or not hasattr(rows, "keys"):
        if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a polars frame
            return {name: rows[name].to_list() for name in rows.columns}
        raise DataError("rows must be a data frame, a mapping of columns, or a list of records")
    return {name: rows[name] for name in rows.keys()}  # noqa: SIM118 - a data frame iterates over its columns, too


def level_text(cell: Any) -> str:
    """As levels are written: true and false, whole numbers without a point."""
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()
