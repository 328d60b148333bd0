"""Kaplan–Meier curves and the log-rank test, from counts in intervals of time.

The bounds of the time column are divided into `BINS`, and neighbouring bins are joined into the shortest intervals in
which every group has enough events and enough censored rows. Within an interval censored rows count half (the actuarial
estimate): S(t) = Π (1 − d/(n − c/2)).
"""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.stats.local_sums import bins_of, count_cells
from winnow.analytics.stats.plan import Grouping, NumberColumn, category_column, number_column
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

BINS = 16
STATES = 2
"""Censored, and event."""


@dataclass(frozen=True, kw_only=True)
class Survival:
    time: NumberColumn
    event: str
    """A column that is true (or 1) where the event happened."""
    grouping: Grouping

    @property
    def labels(self) -> tuple[str, ...]:
        return self.grouping.labels if self.grouping.columns else ("all",)

    @property
    def edges(self) -> NDArray[np.float64]:
        return np.linspace(self.time.low, self.time.high, BINS + 1)

    def counts(self, table: "OwnerTable") -> NDArray[np.int64]:
        """Rows by bin, state and group; those outside of the listed groups do not count."""
        bins, events = bins_of(self.time, self.edges, table), table.codes(self.event)
        groups = self.grouping.codes(table)
        places = np.where((bins < 0) | (events < 0) | (groups >= len(self.labels)), -1, bins * STATES + events)
        counts = count_cells(places, np.minimum(groups, len(self.labels) - 1), (BINS * STATES, len(self.labels)))
        return counts.reshape(BINS, STATES, len(self.labels)).astype(np.int64)


def read_survivals(tests: tuple[str, ...], declaration: TableDeclaration) -> list[Survival]:
    found = list[Survival]()
    for test in tests:
        kind, _, columns = test.partition(":")
        if kind != "survival":
            continue
        time, event, *by = (each.strip() for each in columns.split(","))
        if category_column(declaration, event).values not in (("false", "true"), ("0", "1")):
            raise ConfigError(f"{test}: '{event}' must be of type boolean, or have values = [0, 1]")
        grouping = Grouping(columns=tuple(category_column(declaration, each) for each in by))
        found.append(Survival(time=number_column(declaration, time), event=event, grouping=grouping))
    return found


def open_survival(survival: Survival, minimum: int, bits: int) -> Program[dict[str, Any]]:
    """Curves by group, and the log-rank test where there are two groups or more."""
    spans = [(begin, end) for begin in range(BINS) for end in range(begin + 1, BINS + 1)]
    groups = len(survival.labels)

    def span_counts(table: "OwnerTable") -> NDArray[np.int64]:
        sums = np.concatenate([np.zeros((1, STATES, groups), np.int64), survival.counts(table).cumsum(axis=0)])
        return np.stack([sums[end] - sums[begin] for begin, end in spans]).reshape(-1)

    def compared(table: "OwnerTable") -> NDArray[np.int64]:
        outside = int((survival.grouping.codes(table) >= groups).sum()) if survival.grouping.columns else 0
        return np.concatenate([span_counts(table), np.full(2, outside, np.int64)])

    thresholds = np.r_[np.full(len(spans) * STATES * groups, minimum, np.int64), 1, minimum]
    bits_opened = yield Compare(label="intervals with enough rows", local=compared, thresholds=thresholds, bits=bits)
    *answers, any_outside, enough_outside = bits_opened
    enough = [bool(each.all()) for each in np.reshape(answers, (len(spans), -1))]
    cuts = _join(dict(zip(spans, enough, strict=True)))
    told = {
        "test": "survival",
        "column": survival.time.name,
        "event": survival.event,
        "by": ", ".join(each.name for each in survival.grouping.columns),
    }
    if any_outside and not enough_outside:  # all rows are counted as well, so that these could be subtracted
        return {**told, "p": None, "reason": f"fewer than {minimum} rows belong to none of the groups"}
    if not cuts:
        return {**told, "p": None, "reason": f"a group has fewer than {minimum} events or censored rows"}

    def joined(table: "OwnerTable") -> NDArray[np.int64]:
        return np.add.reduceat(survival.counts(table), cuts[:-1]).reshape(-1)

    opened = yield Sum(label="survival", local=joined, length=(len(cuts) - 1) * STATES * groups)
    counts = opened.reshape(len(cuts) - 1, STATES, groups).astype(np.float64)
    times = survival.edges[cuts].tolist()
    curves = {label: _curve(times, counts[:, :, group]) for group, label in enumerate(survival.labels)}
    return {**told, "times": times, "curves": curves, **(_log_rank(counts) if groups > 1 else {"p": None})}


def _join(enough: dict[tuple[int, int], bool]) -> list[int]:
    """Where the shortest intervals with enough rows begin, and the last one ends; what is left over joins the last."""
    cuts = [0]
    while True:
        end = next((end for end in range(cuts[-1] + 1, BINS + 1) if enough[cuts[-1], end]), None)
        if end is None:
            break
        cuts.append(end)
        if end == BINS:
            break
    return [*cuts[:-1], BINS] if len(cuts) > 1 else []


def _curve(times: list[float], counts: NDArray[np.float64]) -> dict[str, Any]:
    """Survival at the end of each interval, with Greenwood's standard error."""
    censored, events = counts.T
    at_risk = counts.sum() - np.r_[0.0, counts.sum(axis=1).cumsum()[:-1]]
    exposed = at_risk - censored / 2
    alive = np.cumprod(1 - events / exposed)
    terms = np.cumsum(events / (exposed * np.maximum(exposed - events, 0.5)))
    errors = [value * sqrt(term) for value, term in zip(alive, terms, strict=True)]
    return {
        "at_risk": [int(each) for each in at_risk],
        "events": [int(each) for each in events],
        "censored": [int(each) for each in censored],
        "survival": alive.tolist(),
        "error": errors,
    }


def _log_rank(counts: NDArray[np.float64]) -> dict[str, Any]:
    """χ² = (O − E)ᵀ V⁻¹ (O − E) over all groups but one, with the hypergeometric variance of each interval."""
    from scipy.stats import chi2  # noqa: PLC0415 - a second to import

    rows = counts.sum(axis=(0, 1)) - np.vstack([np.zeros(counts.shape[2]), counts.sum(axis=1).cumsum(axis=0)[:-1]])
    exposed, events = rows - counts[:, 0] / 2, counts[:, 1]
    total, deaths = exposed.sum(axis=1, keepdims=True), events.sum(axis=1, keepdims=True)
    shares = exposed / total
    difference = (events - deaths * shares).sum(axis=0)[:-1]
    factor = (deaths * (total - deaths) / np.maximum(total - 1, 1))[:, :, None]
    within = factor * (np.eye(shares.shape[1]) * shares[:, :, None] - shares[:, :, None] * shares[:, None, :])
    variance = within.sum(axis=0)[:-1, :-1]
    statistic = float(difference @ np.linalg.pinv(variance) @ difference)
    freedom = len(difference)
    return {"statistic": statistic, "freedom": freedom, "p": float(chi2.sf(statistic, freedom))}
