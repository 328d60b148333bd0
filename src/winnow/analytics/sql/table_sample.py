"""TABLESAMPLE: which rows stand for all, and how many each stands for.

| method | what is taken |
|---|---|
| BERNOULLI | each row with the same chance, before anything else |
| STRATIFIED | of every group of GROUP BY, at each owner, the same part of the rows that WHERE selects |
| DISTINCT_VALUES | likewise, but 30 rows of a group at least, or all: rare values stay |
| SYSTEM | all rows of some owners |

Everybody can repeat the draw: it follows from the statement.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray
from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.core import ConfigError, stream

Method: TypeAlias = Literal["BERNOULLI", "STRATIFIED", "DISTINCT_VALUES", "SYSTEM"]
METHODS: tuple[Method, ...] = get_args(Method)
MIN_DRAWN = 2
"""Owners, or rows of a group at an owner, that are taken at least: one alone has no spread."""
MIN_OF_VALUE = 30
"""Rows of a group at an owner, by DISTINCT_VALUES."""


@dataclass(frozen=True, kw_only=True)
class TableSample:
    method: Method
    part: float

    @property
    def by_group(self) -> bool:
        return self.method in ("STRATIFIED", "DISTINCT_VALUES")

    @property
    def most(self) -> float:
        """Rows that one of the sample stands for, at most."""
        return 1 / self.part

    def uniform(self, seed: str, rows: int) -> NDArray[np.bool_]:
        """Which of an owner's rows are taken, each with the same chance."""
        drawn: NDArray[np.bool_] = stream(0, "TABLESAMPLE", seed, rows).random(rows) < self.part
        return drawn

    def of_groups(self, codes: NDArray[np.int64], seed: str) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Which rows of each group are taken, and how many rows each of them stands for."""
        taken, weights = np.zeros(len(codes), bool), np.ones(len(codes))
        random = stream(0, "TABLESAMPLE", seed, len(codes))
        least = MIN_OF_VALUE if self.method == "DISTINCT_VALUES" else MIN_DRAWN
        for group in np.unique(codes):
            rows = random.permutation(np.flatnonzero(codes == group))
            count = min(len(rows), max(least, ceil(self.part * len(rows))))
            weights[rows] = len(rows) / count
            taken[rows[:count]] = True
        return taken, weights[taken]

    def owners_drawn(self, owners: int) -> int:
        """How many owners SYSTEM takes."""
        return min(owners, max(MIN_DRAWN, round(self.part * owners)))

    def has_owner(self, seed: str, place: int, owners: int) -> bool:
        order = stream(0, "TABLESAMPLE", seed, owners).permutation(owners)
        return place in order[: self.owners_drawn(owners)]


def take_sample(tree: exp.Select) -> TableSample | None:
    """What TABLESAMPLE asks for, which is taken out of the statement: owners draw rows themselves."""
    samples = list(tree.find_all(exp.TableSample))
    if not samples:
        return None
    if len(samples) > 1 or len(list(tree.find_all(exp.Table))) > 1:
        raise refused(samples[0], "TABLESAMPLE is supported where a statement names one table, once")
    (sample,) = samples
    method, percent = sample.args.get("method"), sample.args.get("percent")
    name = None if method is None else next((each for each in METHODS if each == method.name.upper()), None)
    if name is None or not isinstance(percent, exp.Literal) or percent.is_string:
        raise refused(sample, f"TABLESAMPLE takes one of {', '.join(METHODS)}, such as BERNOULLI(10 PERCENT)")
    part = float(percent.this) / 100
    if not 1e-6 <= part <= 1:
        raise refused(sample, f"TABLESAMPLE {name}({percent.this} PERCENT): write at least 0.0001 and at most 100")
    sample.pop()
    return TableSample(method=name, part=part)


def check_drawn_owners(sample: TableSample, owners: int, least: int) -> None:
    """Sums over fewer owners than each of them demands are opened to nobody."""
    drawn = sample.owners_drawn(owners)
    if drawn < max(MIN_DRAWN, least):
        raise ConfigError(
            f"TABLESAMPLE SYSTEM({sample.part * 100:g} PERCENT) takes {drawn} of {owners} owners; "
            f"{max(MIN_DRAWN, least)} have to take part at least"
        )
