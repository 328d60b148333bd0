"""Tables as data to train on: common units from federated statistics, so that every owner encodes its rows alike.

Mean and standard deviation of numbers, the values of categories and the classes come out of one statistics question,
in a simulation as between organisations: a deployed run is trained on the same numbers as its simulation.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, merge_terms
from winnow.analytics.simulated_tables import simulated_tables
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.tables.declaration import SET_COLUMN, TableDeclaration
from winnow.analytics.tables.federation_file import load_federation
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError, suggest
from winnow.data import DataSet, DataSettings, Preprocessing
from winnow.data.dataframe_adapters import as_table
from winnow.data.fit_preprocessing import Reading, data_set_of
from winnow.data.preprocessing import MAX_CATEGORIES, Column, TargetSpec

TRAIN_SET = "train"
"""Of a table with sets, the rows of this one are trained on."""


def units_question(settings: DataSettings) -> StatisticsQuestion:
    """What must be known of all owners' rows before any of them can be trained on."""
    assert settings.table is not None
    columns = () if settings.features is None else (*settings.features, *settings.targets)
    return StatisticsQuestion(table=settings.table, columns=columns)


def common_preprocessing(answer: Answer, settings: DataSettings) -> Preprocessing:
    """What all owners do to their rows, by the answer to `units_question`. A missing number becomes the mean."""
    told: Mapping[str, Any] = answer["columns"]
    skipped: Mapping[str, str] = answer["skipped"]
    for name in settings.targets:
        if name not in told:
            reason = f"column '{name}' {skipped[name]}" if name in skipped else f"there is no column '{name}'"
            raise ConfigError(f"data.targets: {reason}; {suggest(name, told, at_most=12)}")
    names = settings.features or [name for name in told if name not in (*settings.targets, SET_COLUMN)]
    if not names:
        raise ConfigError(f"table '{settings.table}' has no columns to learn from besides the targets")
    columns = tuple(_column(name, told[name]) for name in names)
    targets = {name: told[name] for name in settings.targets}
    if any("values" in each for each in targets.values()):
        if len(targets) > 1:
            raise ConfigError("a classification has one target column; data.targets names several")
        return Preprocessing(columns=columns, classes=tuple(next(iter(targets.values()))["values"]))
    scales = {name: _scale(name, each["all"]) for name, each in targets.items()}
    specs = tuple(TargetSpec(name=name, shift=mean, width=sd) for name, (mean, sd) in scales.items())
    return Preprocessing(columns=columns, targets=specs)


def _column(name: str, told: Mapping[str, Any]) -> Column:
    if "values" in told:
        if len(told["values"]) > MAX_CATEGORIES:
            raise ConfigError(
                f"column '{name}' has {len(told['values'])} values, more than {MAX_CATEGORIES}; leave it out of "
                "data.features"
            )
        return Column(name=name, kind="category", categories=tuple(told["values"]))
    mean, sd = _scale(name, told["all"])
    return Column(name=name, fill=mean, marks_missing=told["all"]["missing"] != 0, shift=mean, width=sd)


def _scale(name: str, told: Mapping[str, Any]) -> tuple[float, float]:
    """Mean and standard deviation; 1 for a column that is the same throughout."""
    mean, sd = told["mean"], told["sd"]
    if mean is None or sd is None:
        raise ConfigError(f"column '{name}' has too few rows with a value to learn its units; leave it out")
    return float(mean), float(sd) if sd > 0 else 1.0


def load_training_table(settings: DataSettings) -> DataSet:
    """The rows of simulated owners, each of whom is a client."""
    if settings.path is None or settings.table is None:
        raise ConfigError('data.table needs the file that declares it: data.path = "federation.toml"')
    federation = load_federation(Path(settings.path))
    rows = {name: read() for name, read in federation.divided(settings.table).owners.items()}
    stated = settings.preprocessing
    if stated is None:
        question = units_question(settings)
        terms = merge_terms(question, simulated_tables(question, federation)[1])
        answer = run_plain(lambda: question.program(terms), list(rows.values()))
        stated = common_preprocessing(answer, settings)
    return training_data_set(rows, settings, stated)


def training_data_set(tables: Mapping[str, OwnerTable], settings: DataSettings, stated: Preprocessing) -> DataSet:
    """The rows of one or more owners, encoded as stated."""
    parts = {owner: training_columns(table, settings.targets, stated) for owner, table in tables.items()}
    names = next(iter(parts.values())).keys()
    together = {name: np.concatenate([part[name] for part in parts.values()]) for name in names}
    where = f"table {settings.name}"
    frame = as_table(together, where)
    assert frame is not None
    owners = np.repeat(list(parts), [len(next(iter(part.values()))) for part in parts.values()])
    reading = Reading(name=settings.name, targets=settings.targets, stated=stated)
    return data_set_of(frame, None, reading, owners)


def training_columns(table: OwnerTable, targets: Sequence[str], stated: Preprocessing) -> dict[str, NDArray[Any]]:
    """The columns that are asked for, as numbers (NaN: missing) or text; private ones are refused.

    Rows without a target, or with one that is not listed, are left out.
    """
    kept = np.ones(len(table), bool)
    sets = _values(table.declaration, SET_COLUMN) or ()
    if TRAIN_SET in sets:
        kept &= table.codes(SET_COLUMN) == sets.index(TRAIN_SET)
    for name in targets:
        listed = _values(table.declaration, name) is not None
        kept &= table.codes(name) >= 0 if listed else ~np.isnan(table.numbers(name))
    if not kept.any():
        raise DataError("the table has no rows with a target to train on")
    return {name: _cells(table, name)[kept] for name in (*(each.name for each in stated.columns), *targets)}


def _cells(table: OwnerTable, name: str) -> NDArray[Any]:
    if table.declaration.column(name).level == "private":
        raise ConfigError(f"column '{name}' is private; nothing is trained on it")
    values = _values(table.declaration, name)
    if values is None:
        return table.numbers(name)
    words = np.array([*map(str, values), "", None], object)  # codes -2 and -1: another value, and missing
    cells: NDArray[Any] = words[table.codes(name)]
    return cells


def _values(declaration: TableDeclaration, name: str) -> tuple[Any, ...] | None:
    return declaration.columns[name].categories if name in declaration.columns else None
