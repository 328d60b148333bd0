"""Answers that an owner's table holds: its columns are declared, and one owner may have many workers."""

from dataclasses import dataclass

import numpy as np

from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.truth.answer_arrays import AnswerArrays, Indices, Numbers
from winnow.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class AnswerColumns:
    """Which columns hold items, answers and workers. All owners list the same items, so nobody tells which it has.

    Without labels, answers are numbers between `low` and `high`. Without `worker`, an owner is one worker.
    """

    item: str
    label: str
    worker: str | None
    items: tuple[str, ...]
    labels: tuple[str, ...]
    low: float = -1.0
    high: float = 1.0

    def answers(self, table: OwnerTable, shown: Indices | None = None) -> AnswerArrays:
        """The owner's answers to all items, or to those that are shown. Of a worker's answers to an item, the first
        counts; a cell that is empty or not listed is no answer.
        """
        places = np.arange(len(self.items)) if shown is None else shown
        number_of = np.full(len(self.items) + 2, -1)  # the last two stand for cells that are missing or not listed
        number_of[places] = np.arange(len(places))
        items, values = number_of[table.codes(self.item)], self._values(table)
        given = np.flatnonzero((items >= 0) & ~np.isnan(values))
        names, workers = np.unique(self._workers(table)[given], return_inverse=True)
        _, first = np.unique(workers * max(len(places), 1) + items[given], return_index=True)
        kept = np.sort(first)
        return AnswerArrays(
            items=items[given[kept]],
            workers=workers[kept],
            values=values[given[kept]],
            item_count=len(places),
            worker_count=len(names),
            classes=len(self.labels),
        )

    def _values(self, table: OwnerTable) -> Numbers:
        """NaN where there is no answer."""
        if self.labels:
            codes = table.codes(self.label).astype(np.float64)
            return np.where(codes >= 0, codes, np.nan)
        return (table.numbers(self.label) - self.low) / (self.high - self.low) * 2 - 1

    def _workers(self, table: OwnerTable) -> Indices:
        """A number for each row's worker. Rows without a name are one worker's."""
        if self.worker is None:
            return np.zeros(len(table), np.int64)
        named = table.rows.column(self.worker).combine_chunks().dictionary_encode()
        numbers: Indices = named.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers


def answer_columns(
    declared: TableDeclaration, *, item: str, label: str, worker: str | None, numeric: bool
) -> AnswerColumns:
    """The columns as all owners declare them, or a line that says what is missing."""
    items = _values(declared.column(item), item, "items")
    if worker is not None:
        declared.column(worker)
    if not numeric:
        labels = _values(declared.column(label), label, "answers")
        if len(labels) < 2:
            raise ConfigError(f"column '{label}' has one value; answers take two or more")
        return AnswerColumns(item=item, label=label, worker=worker, items=items, labels=labels)
    answers = declared.column(label)
    _check_level(answers, label)
    if answers.bounds is None:
        raise ConfigError(f"column '{label}' has no bounds, which the method crh needs; declare bounds = [low, high]")
    low, high = answers.bounds
    return AnswerColumns(item=item, label=label, worker=worker, items=items, labels=(), low=low, high=high)


def _values(column: ColumnDeclaration, name: str, what: str) -> tuple[str, ...]:
    _check_level(column, name)
    if column.categories is None:
        raise ConfigError(f"column '{name}' has no list of values; all owners have to list the {what}: values = […]")
    return tuple(each if isinstance(each, str) else f"{each:g}" for each in column.categories)


def _check_level(column: ColumnDeclaration, name: str) -> None:
    if column.level == "private":
        raise ConfigError(f"column '{name}' is private; truth discovery shows items and their answers")
