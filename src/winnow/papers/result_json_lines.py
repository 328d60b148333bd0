"""Results as small JSON lines. A page is made of lines alone, wherever they were computed."""

from collections.abc import Iterable, Mapping
from math import isnan, nan
from pathlib import Path
from typing import TypeAlias

import msgspec

from winnow.config.renamed_settings import ALGORITHMS
from winnow.core import RunError
from winnow.report.plot_data import read_plot_data
from winnow.runs import RunView
from winnow.runs.atomic_write import one_line_errors, write_atomically
from winnow.runs.target_crossing import sustained_crossing

CLIENTS, TUNED = "clients", "tuned"
MAX_SCORED_CLIENTS = 20
"""Scores of larger populations are left out: they would outweigh everything else."""


class SelectionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How often each client was selected; `condition` says by its place in `labels` what was done to its data."""

    labels: tuple[str, ...]
    condition: tuple[int, ...]
    selections: tuple[int, ...] = msgspec.field(name="invitations")


class RunResultLine(msgspec.Struct, frozen=True, kw_only=True, tag="run", tag_field="kind", omit_defaults=True):
    """What one run gave: `item` is the table or figure, `algorithm` the row or curve; the trace starts at round 0."""

    item: str = msgspec.field(name="of")
    algorithm: str
    seed: int
    rounds: int
    best: float | None = None
    test_best: float | None = None
    local_test_best: float | None = msgspec.field(default=None, name="own_best")
    """The best mean over clients of the model that each uses itself, on samples of its own (`data.local_test`)."""
    rounds_to_target: int | None = None
    seconds_to_target: float | None = None
    wh_to_target: float | None = None
    selected_wh_to_target: float | None = msgspec.field(default=None, name="invited_wh_to_target")
    """With the work of those whose replies were not waited for, where there were any."""
    trace: tuple[float | None, ...] = ()
    tuned: tuple[float | None, ...] = ()
    """The metric after clients have tuned the model for themselves, where it was measured; like the trace."""
    seconds: tuple[float, ...] = ()
    """The clock at each point of the trace, where a round's communication costs a constant."""
    counts: SelectionCounts | None = None
    scores: tuple[tuple[float, ...], ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, self.algorithm, str(self.seed)

    def rounds_to_sustained(self, target: float) -> int | None:
        """The round that crossed the target and was followed by five whose mean reaches it, too; by the trace."""
        return sustained_crossing([nan if value is None else value for value in self.trace], target)


class DistributionResultLine(
    msgspec.Struct, frozen=True, kw_only=True, tag="sample", tag_field="kind", omit_defaults=True
):
    """The distribution of one quantity over `samples` samples, in a panel (row, column) of a figure.

    `density` holds the heights of a histogram between `low` and `high`; `quantiles` are the sample's at
    (i + 1/2)/m for i < m, standardised. `distance` and `correlation` measure how normal it is (see `normality`).
    """

    item: str = msgspec.field(name="of")
    row: str
    column: str
    series: str
    samples: int
    mean: float
    sd: float
    low: float
    high: float
    density: tuple[float, ...]
    quantiles: tuple[float, ...]
    distance: float
    correlation: float
    epochs: int = 0
    """How long the network had been trained; 0 where none was."""
    sets: tuple[str, ...] = ()
    """What a user had changed of the set-up."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, self.row, self.column, self.series


class LinearCaseResultLine(
    msgspec.Struct, frozen=True, kw_only=True, tag="linear", tag_field="kind", omit_defaults=True
):
    """FedRep and SRPFL on one problem of the linear case, to a target of 1.2 times FedRep's `floor`.

    `initial_clients` estimated the start. `fedrep` and `srpfl` are distances by round, kept for one problem a figure.
    """

    item: str = msgspec.field(name="of")
    clients: int
    initial_clients: int = msgspec.field(name="starters")
    seed: int
    start: float
    floor: float
    predicted: float
    fedrep_rounds: int
    fedrep_seconds: float
    srpfl_rounds: int | None = None
    srpfl_seconds: float | None = None
    fedrep: tuple[float, ...] = ()
    srpfl: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, str(self.clients), str(self.initial_clients), str(self.seed)

    @property
    def ratio(self) -> float | None:
        """SRPFL's time over FedRep's."""
        return None if self.srpfl_seconds is None else self.srpfl_seconds / self.fedrep_seconds


class TrafficResultLine(msgspec.Struct, frozen=True, kw_only=True, tag="uplink", tag_field="kind"):
    """Bytes that crossed the connection for each of a round's `clients`, both ways, without a mask keeper's own."""

    item: str = msgspec.field(name="of")
    algorithm: str
    clients: int
    up: float
    down: float

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, self.algorithm, "uplink"


class TruthResultLine(msgspec.Struct, frozen=True, kw_only=True, tag="truth", tag_field="kind"):
    """One value of a curve of truth discovery: `series` at the place `x`, for one seed."""

    item: str = msgspec.field(name="of")
    series: str
    x: float
    seed: int
    value: float

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, self.series, f"{self.x:g}", str(self.seed)


class MeasuredResultLine(msgspec.Struct, frozen=True, kw_only=True, tag="measured", tag_field="kind"):
    """Values that were measured together for one row of a table, for one seed."""

    item: str = msgspec.field(name="of")
    row: str
    seed: int
    values: dict[str, float]

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, self.row, str(self.seed)


ResultLine: TypeAlias = (
    RunResultLine
    | DistributionResultLine
    | LinearCaseResultLine
    | TrafficResultLine
    | TruthResultLine
    | MeasuredResultLine
)
ResultLines: TypeAlias = Mapping[tuple[str, ...], ResultLine]

_DECODER = msgspec.json.Decoder(ResultLine)


def lines_by_key(lines: Iterable[ResultLine]) -> dict[tuple[str, ...], ResultLine]:
    """Lines by what they are the result of; later ones replace earlier ones."""
    return {line.key: line for line in lines}


def read_lines(path: Path) -> list[ResultLine]:
    with one_line_errors(path):
        texts = path.read_bytes().splitlines()
    lines = []
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(_with_new_name(_DECODER.decode(text)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path}, line {number}: not a valid result line: {error}") from None
    return lines


def _with_new_name(line: ResultLine) -> ResultLine:
    """Lines outlive the names of algorithms."""
    if isinstance(line, RunResultLine) and line.algorithm in ALGORITHMS:
        return msgspec.structs.replace(line, algorithm=ALGORITHMS[line.algorithm])
    return line


def write_lines(path: Path, lines: ResultLines) -> None:
    text = b"".join(msgspec.json.encode(lines[key]) + b"\n" for key in lines)
    with one_line_errors(path):
        write_atomically(path, lambda temporary: temporary.write_bytes(text))


def run_result_lines(lines: ResultLines, item: str, algorithm: str) -> list[RunResultLine]:
    """All runs of a row or curve, by seed."""
    found = (line for line in lines.values() if isinstance(line, RunResultLine))
    return sorted(
        (line for line in found if (line.item, line.algorithm) == (item, algorithm)), key=lambda line: line.seed
    )


def distribution_result_lines(lines: ResultLines, item: str) -> list[DistributionResultLine]:
    return [line for line in lines.values() if isinstance(line, DistributionResultLine) and line.item == item]


def linear_case_result_lines(lines: ResultLines, item: str) -> list[LinearCaseResultLine]:
    return [line for line in lines.values() if isinstance(line, LinearCaseResultLine) and line.item == item]


def run_result_line(
    view: RunView, *, item: str, algorithm: str, selected_wh: float | None = None, clocked: bool = False
) -> RunResultLine:
    """A finished run as a line: with its trace, and how often each client was selected; its scores, where few clients
    have any; `clocked`, it says when each point of the trace was reached.
    """
    summary, run = view.summary(), read_plot_data(view)
    readings = [point.value(summary.evaluated_by, summary.metric) for point in run.points]
    tuned = [point.value(TUNED, summary.metric) for point in run.points]
    own = [value for point in run.points if (value := point.value(CLIENTS, summary.metric)) is not None]
    few = run.scores is not None and run.scores.values.shape[1] <= MAX_SCORED_CLIENTS
    counts = SelectionCounts(
        labels=run.participation.labels,
        condition=tuple(run.participation.of_client.tolist()),
        selections=tuple(run.participation.selections.tolist()),
    )
    return RunResultLine(
        item=item,
        algorithm=algorithm,
        seed=view.label.seed,
        rounds=summary.rounds,
        best=summary.best.value if summary.best else None,
        test_best=summary.test_best.value if summary.test_best else None,
        local_test_best=max(own, default=None),
        rounds_to_target=summary.rounds_to_target,
        seconds_to_target=summary.seconds_to_target,
        wh_to_target=summary.wh_to_target,
        selected_wh_to_target=selected_wh,
        trace=_trace(readings),
        tuned=_trace(tuned) if any(value is not None for value in tuned) else (),
        seconds=rounded((point.seconds for point in run.points), 4) if clocked else (),
        counts=counts,
        scores=tuple(rounded(scores, 5) for scores in run.scores.values) if run.scores and few else (),
    )


def _trace(readings: Iterable[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None or isnan(value) else round(value, 4) for value in readings)


def rounded(values: Iterable[float], places: int) -> tuple[float, ...]:
    return tuple(round(float(value), places) for value in values)
