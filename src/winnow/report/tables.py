"""The tables of a report. The terminal prints the same rows, so the numbers agree."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeAlias

import numpy as np

from winnow.core import Cost
from winnow.report.number_format import MISSING, MeanAndSd, mean_sd_text, number_text, size_text
from winnow.report.plot_data import ParticipationCounts
from winnow.runs import Summary
from winnow.runs.summary import JOULES_PER_WH

SECONDS_PER_MINUTE = 60.0
COST_KINDS = ("transfer", "training", "profiling")

Cells: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRow:
    """What one algorithm achieved over its runs. To-target figures cover the runs that reached the target."""

    algorithm: str
    runs: int
    reached: int
    best: MeanAndSd | None
    test_best: MeanAndSd | None
    rounds_to_target: MeanAndSd | None
    rounds_to_sustained_target: MeanAndSd | None
    seconds_to_target: MeanAndSd | None
    wh_to_target: MeanAndSd | None
    target: bool
    """Whether there was one to reach."""
    time: bool
    energy: bool
    """Whether time, and the devices' energy, were counted at all."""

    def cells(self) -> Cells:
        minutes = self.seconds_to_target.scaled(1 / SECONDS_PER_MINUTE) if self.seconds_to_target else None
        return (
            self.algorithm,
            mean_sd_text(self.best, decimals=4),
            mean_sd_text(self.test_best, decimals=4),
            f"{self.reached} of {self.runs}",
            mean_sd_text(self.rounds_to_target),
            mean_sd_text(self.rounds_to_sustained_target),
            mean_sd_text(minutes),
            mean_sd_text(self.wh_to_target),
        )


def comparison_cells(rows: Sequence[ComparisonRow], metric: str, target: float | None) -> tuple[Cells, list[Cells]]:
    """The header and the lines of a comparison, without columns for what there was not: a target, time, energy."""
    goal = "target" if target is None else f"{target:g}"
    header = (
        "Algorithm",
        f"Best {metric}",
        f"Test {metric}",
        f"Reached {goal}",
        "Rounds to target",
        "Sustained rounds",
        "Minutes to target",
        "Wh to target",
    )
    aimed = any(row.target for row in rows)
    timed, charged = aimed and any(row.time for row in rows), aimed and any(row.energy for row in rows)
    shown = (True, True, True, aimed, aimed, aimed, timed, charged)
    return tuple(compress(header, shown)), [tuple(compress(row.cells(), shown)) for row in rows]


def comparison_table(summaries: Iterable[tuple[str, Summary]]) -> list[ComparisonRow]:
    """One row an algorithm, in the order in which they first appear, from (algorithm, summary) pairs."""
    groups: dict[str, list[Summary]] = {}
    for algorithm, summary in summaries:
        groups.setdefault(algorithm, []).append(summary)
    return [_comparison_row(algorithm, group) for algorithm, group in groups.items()]


def _comparison_row(algorithm: str, group: Sequence[Summary]) -> ComparisonRow:
    return ComparisonRow(
        algorithm=algorithm,
        runs=len(group),
        reached=sum(summary.rounds_to_target is not None for summary in group),
        best=MeanAndSd.of(summary.best.value for summary in group if summary.best),
        test_best=MeanAndSd.of(summary.test_best.value for summary in group if summary.test_best),
        rounds_to_target=MeanAndSd.of(summary.rounds_to_target for summary in group),
        rounds_to_sustained_target=MeanAndSd.of(summary.rounds_to_sustained_target for summary in group),
        seconds_to_target=MeanAndSd.of(summary.seconds_to_target for summary in group),
        wh_to_target=MeanAndSd.of(summary.wh_to_target for summary in group if summary.wh),
        target=any(summary.target is not None for summary in group),
        time=any(summary.seconds for summary in group),
        energy=any(summary.wh for summary in group),
    )


COST_HEADER: Cells = (
    "Spent on",
    "Device seconds",
    "Device seconds per round",
    "Joules",
    "Joules per round",
    "Wh",
    "Share of energy",
)


def cost_cells(summaries: Sequence[Summary]) -> tuple[Cells, list[Cells]]:
    """Where the time and the energy of an algorithm's devices went, on average over its runs; a header, and lines.

    Where no energy was counted nothing is said of it.
    """
    cost = _mean_cost([summary.cost for summary in summaries])
    rounds = max(float(np.mean([summary.rounds for summary in summaries])), 1.0)
    split = {kind: (getattr(cost, f"{kind}_seconds"), getattr(cost, f"{kind}_joules")) for kind in COST_KINDS}
    split["total"] = (cost.seconds, cost.joules)
    if not cost.joules:
        return COST_HEADER[:3], [(kind, number_text(s), number_text(s / rounds)) for kind, (s, _) in split.items()]
    return COST_HEADER, [
        (
            kind,
            *map(number_text, (seconds, seconds / rounds, joules, joules / rounds, joules / JOULES_PER_WH)),
            f"{joules / cost.joules:.1%}",
        )
        for kind, (seconds, joules) in split.items()
    ]


def traffic(summaries: Sequence[Summary]) -> dict[str, str]:
    """What clients sent and received, on average over an algorithm's runs; empty where nobody counted bytes."""
    cost, selections = _mean_cost([summary.cost for summary in summaries]), [each.selections for each in summaries]
    moved = {"sent": cost.sent_bytes, "received": cost.received_bytes}
    times = max(float(np.mean(selections)), 1.0)
    return {
        way: f"{size_text(count / times)} per client and round, {size_text(count)} in total"
        for way, count in moved.items()
        if count
    }


def _mean_cost(costs: Sequence[Cost]) -> Cost:
    return Cost(*np.mean(costs, axis=0).tolist())


PARTICIPATION_HEADER: Cells = ("Data", "Clients", "Times selected", "Times selected per client", "Relative to clean")


def participation_table(participations: Sequence[ParticipationCounts]) -> list[Cells]:
    """How often clients were selected, by what was done to their data, on average over an algorithm's runs."""
    clients, selections = dict[str, int](), dict[str, int]()
    for run in participations:
        for index, condition in enumerate(run.labels):
            members = run.of_client == index
            clients[condition] = clients.get(condition, 0) + int(members.sum())
            selections[condition] = selections.get(condition, 0) + int(run.selections[members].sum())
    runs = len(participations)
    rates = {name: selections[name] / count for name, count in clients.items() if count}
    return [
        (
            name,
            number_text(clients[name] / runs),
            number_text(selections[name] / runs),
            number_text(rate),
            _relative(rate, rates),
        )
        for name, rate in rates.items()
    ]


def _relative(rate: float, rates: Mapping[str, float]) -> str:
    clean = rates.get("clean")
    return f"{rate / clean:.1%}" if clean else MISSING
