"""What a run achieved and what it took, worked out from its events alone."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeGuard

from winnow.core import AnyEvent, Cost, Rejected, RoundFinished, Selected, Stopped
from winnow.core.installed_package import installed_version
from winnow.runs.history import HistoryPoint, RunHistory
from winnow.runs.privacy_budgets import PrivacyBudget
from winnow.runs.run_identity_record import SCHEMA, RunLabel
from winnow.runs.target_crossing import first_crossing, sustained_crossing

JOULES_PER_WH = 3600.0
REFERENCE, TEST, PRIVACY = "reference", "test", "privacy"
EVALUATED_BY_TEXT = {
    REFERENCE: "on the reference set",
    "clients": "by each client on its own samples",
    "tuned": "by each client on its own samples, after fine-tuning",
}
"""Whose scores may decide, and what to call that in a sentence."""
SCORED = (*EVALUATED_BY_TEXT, TEST)
"""The data on which models are scored."""


MAX_REASONS = 5
"""Reasons of abandoned rounds that are listed in one line."""
ABANDONED_PREFIX = "the round was abandoned: "
"""What the reason begins with that everybody in an abandoned round is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricReading:
    """A metric after some round."""

    value: float
    round: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AbandonedRounds:
    """Rounds in which no reply could be aggregated, counted by reason, the most frequent first."""

    rounds: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The outcome of a run.

    `best` and `last` are measured on the reference set, or by the clients themselves if the run is `evaluated_by` them;
    `test_best` and `test_last` are the test set's readings of the same two models. What was needed to reach the target
    is None where it was not reached; it was sustained where the next five evaluations reached it on average. `seconds`
    is the run's clock, while `cost` adds up what all devices spent, side by side or not.
    """

    metric: str
    target: float | None
    rounds: int
    best: MetricReading | None
    last: MetricReading | None
    test_best: MetricReading | None
    test_last: MetricReading | None
    rounds_to_target: int | None
    seconds_to_target: float | None
    wh_to_target: float | None
    seconds: float
    wh: float
    cost: Cost
    rejected: int
    evaluated_by: str = REFERENCE
    stopped: str | None = None
    """Why the run ended before its rounds were done."""
    privacy_spent: Mapping[str, float] = field(default_factory=dict)
    """What privacy it cost, by the guarantee's name: {"epsilon": …}."""
    privacy_budgets: Mapping[str, PrivacyBudget] = field(default_factory=dict)
    """At which δ, and up to which ε, by the same names; known where the configuration is."""
    abandoned: AbandonedRounds | None = None
    selections: int = 0
    """How often a client was asked to train, over all rounds and clients."""
    lower_is_better: bool = False
    rounds_to_sustained_target: int | None = None
    best_metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """All metrics of the best model, by the data they were measured on."""

    def without_devices(self) -> "Summary":
        """The same without time and energy, where no devices were simulated that could take any."""
        moved = Cost(sent_bytes=self.cost.sent_bytes, received_bytes=self.cost.received_bytes)
        return replace(self, seconds_to_target=None, wh_to_target=None, seconds=0.0, wh=0.0, cost=moved)


def summarise(
    events: Iterable[AnyEvent],
    *,
    metric: str,
    target: float | None,
    evaluated_by: str = REFERENCE,
    lower_is_better: bool = False,
    course: Sequence[HistoryPoint] | None = None,
) -> Summary:
    """Score a run by `metric` as `evaluated_by` has it: the highest is best, the first at `target` or above counts; the
    lowest and the first at `target` or below where lower is better. `course` has the events' points, for whoever made
    them already.
    """
    sign = -1 if lower_is_better else 1
    track, points, costs, rejected, stopped = RunHistory(), list(course or ()), list[Cost](), 0, None
    abandoned, selections = _AbandonedRoundCounter(), 0
    for event in events:
        if course is None and (point := track.follow(event)) is not None:
            points.append(point)
        if isinstance(event, Selected):
            selections += len(event.clients)
        elif isinstance(event, RoundFinished):
            costs.append(event.cost)
            abandoned.round_finished(event)
        elif isinstance(event, Rejected):
            rejected += 1
            abandoned.rejected(event)
        stopped = event.reason if isinstance(event, Stopped) else None
    evaluated = [point for point in points if _is_known(point.value(evaluated_by, metric))]
    best = max(evaluated, key=lambda point: sign * point.metrics[evaluated_by][metric], default=None)
    last = evaluated[-1] if evaluated else None
    values = [point.metrics[evaluated_by][metric] for point in evaluated]
    crossing = None if target is None else first_crossing(values, target, lower_is_better=lower_is_better)
    sustained = None if target is None else sustained_crossing(values, target, lower_is_better=lower_is_better)
    reached = None if crossing is None else evaluated[crossing]
    return Summary(
        metric=metric,
        target=target,
        rounds=max((point.round for point in points), default=0),
        best=_reading(best, evaluated_by, metric),
        last=_reading(last, evaluated_by, metric),
        test_best=_reading(best, TEST, metric),
        test_last=_reading(last, TEST, metric),
        rounds_to_target=reached.round if reached else None,
        rounds_to_sustained_target=None if sustained is None else evaluated[sustained].round,
        seconds_to_target=reached.seconds if reached else None,
        wh_to_target=reached.joules / JOULES_PER_WH if reached else None,
        seconds=points[-1].seconds if points else 0.0,
        wh=points[-1].joules / JOULES_PER_WH if points else 0.0,
        cost=Cost.total(costs),
        rejected=rejected,
        evaluated_by=evaluated_by,
        stopped=stopped,
        privacy_spent=points[-1].metrics.get(PRIVACY, {}) if points else {},
        abandoned=abandoned.result,
        selections=selections,
        lower_is_better=lower_is_better,
        best_metrics={} if best is None else {name: best.metrics[name] for name in SCORED if name in best.metrics},
    )


def result_record(
    summary: Summary,
    label: RunLabel,
    *,
    parameters: int,
    message_bytes: int,
    wall_seconds: float,
    private: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of result.json; docs/run-folder.md says what each entry means."""
    return {
        "schema": SCHEMA,
        "name": label.name,
        "algorithm": label.algorithm,
        "seed": label.seed,
        "metric": summary.metric,
        "lower_is_better": summary.lower_is_better,
        "evaluated_by": summary.evaluated_by,
        "target": summary.target,
        "rounds": summary.rounds,
        "best": _record(summary.best),
        "last": _record(summary.last),
        "test": {"best": _record(summary.test_best), "last": _record(summary.test_last)},
        "best_metrics": {data: dict(values) for data, values in summary.best_metrics.items()},
        "rounds_to_target": summary.rounds_to_target,
        "rounds_to_sustained_target": summary.rounds_to_sustained_target,
        "seconds_to_target": summary.seconds_to_target,
        "wh_to_target": summary.wh_to_target,
        "seconds": summary.seconds,
        "wh": summary.wh,
        "selections": summary.selections,
        "cost": summary.cost.record(),
        "rejected": summary.rejected,
        "stopped": summary.stopped,
        "abandoned": asdict(summary.abandoned) if summary.abandoned else None,
        "privacy": dict(summary.privacy_spent),
        "privacy_budgets": {name: asdict(promise) for name, promise in summary.privacy_budgets.items()},
        "parameters": parameters,
        "private": list(private),
        "message_bytes": message_bytes,
        "winnow": installed_version(),
        "wall_seconds": wall_seconds,
    }


def privacy_spent_lines(
    spent: Mapping[str, float], privacy_budgets: Mapping[str, PrivacyBudget] | None = None
) -> list[str]:
    """What privacy a run has cost, as people read it: `ε 4.85 of 8, at δ = 0.001`."""
    privacy_budgets = privacy_budgets or {}
    return [
        f"{name.replace('_', ' ').replace('epsilon', 'ε')} {privacy_spent_text(value, privacy_budgets.get(name))}"
        for name, value in spent.items()
    ]


def privacy_spent_text(value: float, promise: PrivacyBudget | None, digits: int = 3) -> str:
    if promise is None:
        return f"{value:.{digits}g}"
    budget = "" if promise.budget is None else f" of {promise.budget:g}"
    return f"{value:.{digits}g}{budget}, at δ = {promise.delta:g}"


def privacy_spent_rows(summary: Summary) -> list[tuple[str, str]]:
    """Each guarantee's name and what it has come to, exactly enough to be compared with a budget."""
    return [
        (name.replace("_", " "), privacy_spent_text(value, summary.privacy_budgets.get(name), digits=4))
        for name, value in summary.privacy_spent.items()
    ]


def abandoned_text(summary: Summary) -> str:
    """How many rounds were abandoned, and why; empty where none was."""
    if summary.abandoned is None:
        return ""
    rounds = "1 round" if summary.rounds == 1 else f"{summary.rounds} rounds"
    were = "was" if summary.abandoned.rounds == 1 else "were"
    reasons = list(summary.abandoned.reasons.items())
    if len(reasons) == 1:
        return f"{summary.abandoned.rounds} of {rounds} {were} abandoned: {reasons[0][0]}"
    shown = [f"{count}× {reason}" for reason, count in reasons[:MAX_REASONS]]
    shown += [f"{len(reasons) - MAX_REASONS} more reasons"] if len(reasons) > MAX_REASONS else []
    return f"{summary.abandoned.rounds} of {rounds} {were} abandoned: {'; '.join(shown)}"


class _AbandonedRoundCounter:
    """Counts rounds in which replies were rejected and none was aggregated, each under its own reason."""

    def __init__(self) -> None:
        self._reasons, self._in_round = Counter[str](), Counter[str]()

    def rejected(self, event: Rejected) -> None:
        self._in_round[event.reason] += 1

    def round_finished(self, event: RoundFinished) -> None:
        if self._in_round and not len(event.aggregated):
            self._reasons[self._reason_of_round()] += 1
        self._in_round.clear()

    @property
    def result(self) -> AbandonedRounds | None:
        if not self._reasons:
            return None
        return AbandonedRounds(rounds=self._reasons.total(), reasons=dict(self._reasons.most_common()))

    def _reason_of_round(self) -> str:
        """The reason given for the whole round, where there is one; else the most frequent of its replies."""
        of_all = [reason for reason in self._in_round if reason.startswith(ABANDONED_PREFIX)]
        reason = of_all[0] if of_all else self._in_round.most_common(1)[0][0]
        return reason.removeprefix(ABANDONED_PREFIX)


def _reading(point: HistoryPoint | None, data: str, metric: str) -> MetricReading | None:
    value = point.value(data, metric) if point else None
    return MetricReading(value=value, round=point.round) if point and _is_known(value) else None


def _is_known(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)


def _record(reading: MetricReading | None) -> dict[str, Any] | None:
    return asdict(reading) if reading else None
