"""Naive Bayes from sums by class: counts of values for categories, means and variances for numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import DesignCategory, DesignNumber
from winnow.analytics.fit.fit_rows import FitRows
from winnow.analytics.fit.pool_levels import enough_rows
from winnow.analytics.fit.whole_numbers import FixedPoint
from winnow.analytics.program import Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError


def naive_bayes_program(sample: FitRows, minimum: int) -> Program[dict[str, Any]]:
    columns = [term[0] for term in sample.design.factors]
    numbers = [column for column in columns if isinstance(column, DesignNumber)]
    categories = [column for column in columns if isinstance(column, DesignCategory)]
    if numbers and categories:
        named = ", ".join(str(column.factor) for column in categories)
        raise ConfigError(f"naive-bayes takes numbers or categories, not both; these are categories: {named}")
    found = yield from _of_numbers(sample, numbers) if numbers else _of_categories(sample, categories, minimum)
    return {"priors": [count / sample.rows for count in sample.counts], **found}


def _of_numbers(sample: FitRows, columns: list[DesignNumber]) -> Program[dict[str, Any]]:
    sums = FixedPoint(float(sample.rows))

    def local(table: OwnerTable) -> NDArray[np.int64]:
        matrix, response = sample.complete(table)
        member = (response[:, None] == np.arange(sample.classes)).astype(float)
        return sums.whole(np.concatenate([(member.T @ matrix).reshape(-1), (member.T @ matrix**2).reshape(-1)]))

    cells = sample.classes * len(columns)
    opened = sums.real((yield Sum(label="sums and squares by class", local=local, length=2 * cells)))
    rows = np.array(sample.counts)[:, None]
    mean = opened[:cells].reshape(sample.classes, -1) / rows
    variance = np.maximum(opened[cells:].reshape(sample.classes, -1) / rows - mean**2, 0.0)
    half, centre = np.array([each.half for each in columns]), np.array([each.centre for each in columns])
    return {
        "columns": [str(each.factor) for each in columns],
        "mean": (centre + half * mean).tolist(),
        "variance": (half**2 * variance).tolist(),
    }


def _of_categories(sample: FitRows, columns: list[DesignCategory], minimum: int) -> Program[dict[str, Any]]:
    """Cells with too few rows are not told; smoothing fills them in as if they had none."""

    cells = [[(column.factor.column, group)] for column in columns for group in column.groups]
    enough = yield from enough_rows(sample, cells, minimum, "enough rows of each value")
    flat = _hide_single(enough, [len(column.groups) for column in columns]).reshape(-1)
    opened = yield Sum(
        label="values by class",
        local=lambda table: sample.level_counts(table, cells).reshape(-1)[flat],
        length=int(flat.sum()),
        hidden=int((~flat).sum()),
    )
    told = np.zeros(len(flat))
    told[flat] = opened.astype(float)
    ends = np.cumsum([len(column.groups) for column in columns])[:-1]
    by_column = np.split(told.reshape(-1, sample.classes), ends)
    return {
        "columns": [str(each.factor) for each in columns],
        "counts": [each.T.tolist() for each in by_column],
        "hidden": int((~flat).sum()),
    }


def _hide_single(shown: NDArray[np.bool_], lengths: list[int]) -> NDArray[np.bool_]:
    """Where one value of a class alone is hidden, the class's total would tell it: another goes with it."""
    shown, first = shown.copy(), 0
    for length in lengths:
        block = shown[first : first + length]
        for cells in block.T:
            if (~cells).sum() == 1 and cells.any():
                hidden = int(np.argmin(cells))
                cells[hidden + 1 if hidden + 1 < length else hidden - 1] = False
        first += length
    return shown
