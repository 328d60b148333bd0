"""A table of methods for few labels: how much of the gap between few and all labels each closes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from winnow.config.resolve import resolve
from winnow.data.hidden_labels import LabelSettings
from winnow.papers.last_rounds import LAST_ROUNDS, last_score
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method with its settings."""

    name: str
    title: str
    algorithm: str
    settings: tuple[str, ...] = ()
    all_labels: bool = False
    """Whether clients have all their labels."""
    untrained_of: str = ""
    """The row whose runs are looked at before their first round, in the place of runs of its own."""


ALL_LABELS = Row(name="all-labels", title="All labels, at the clients", algorithm="fixmatch", all_labels=True)
"""FedAvg with weakly changed samples: FixMatch with nothing left to label."""
ALL_LABELS_AND_SERVER = replace(ALL_LABELS, title="All labels, at clients and server", settings=("client.clip=1",))
"""The same where the server has labels, too: it goes on training on them, and clients bound gradients as it does."""

LABELLED_AT_SERVER = Row(name="labelled-only", title="Labelled only, at the server", algorithm="server-only")
FIXMATCH = Row(name="fixmatch", title="FixMatch", algorithm="fixmatch")

HEADER = ("Method", "Accuracy", "Gap closed", "Best round")


@dataclass(frozen=True, kw_only=True)
class GapTable(PaperItem):
    """A setting. The first row has the labels alone, the last one all labels."""

    preset: str
    rows: tuple[Row, ...]
    about: str
    settings: tuple[str, ...] = ()
    heavy: bool = False

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    @property
    def names(self) -> set[str]:
        return {self.name}

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            self._run(row, seed, wanted) for seed in range(wanted.seeds) for row in self.rows if not row.untrained_of
        ]

    def _run(self, row: Row, seed: int, wanted: ReproductionOptions) -> PaperRun:
        sets = (*self.settings, *row.settings, *wanted.sets)
        experiment = resolve(self.preset, sets=sets, algorithm=row.algorithm, seed=seed, rounds=wanted.rounds)
        if row.all_labels:
            data = experiment.data.model_copy(update={"labels": all_known(experiment.data.labels)})
            experiment = experiment.model_copy(update={"data": data})
        return PaperRun(item=self.name, algorithm=row.name, experiment=experiment)

    def has_results(self, lines: ResultLines) -> bool:
        return any(run_result_lines(lines, self.name, row.name) for row in self.rows)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = {row.name: self._result_lines(row, lines) for row in self.rows}
        if not any(found.values()):
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        rounds = sorted({run.rounds for runs in found.values() for run in runs})
        lasted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        caption = (
            f"{lasted} rounds; number of seeds in brackets. Accuracy on the reference set, which nobody trains on, as"
            f" the mean over the last {LAST_ROUNDS} rounds."
        )
        return [TextBlock(self.about), TableBlock(caption, HEADER, [self._cells(row, found) for row in self.rows])]

    def _result_lines(self, row: Row, lines: ResultLines) -> list[RunResultLine]:
        if not row.untrained_of:
            return run_result_lines(lines, self.name, row.name)
        return [untrained(run) for run in run_result_lines(lines, self.name, row.untrained_of) if run.trace]

    def _cells(self, row: Row, found: dict[str, list[RunResultLine]]) -> list[str]:
        runs = found[row.name]
        if not runs:
            return [row.title, "not run", "–", "–"]
        return [
            f"{row.title} ({len(runs)})",
            mean_sd_text(MeanAndSd.of(map(last_score, runs)), 4),
            self._gap_text(row, found),
            mean_sd_text(MeanAndSd.of(run.best for run in runs), 4),
        ]

    def _gap_text(self, row: Row, found: dict[str, list[RunResultLine]]) -> str:
        least, most = self.rows[0], self.rows[-1]
        if row in (least, most):
            return "–"
        closed = gaps_closed(found[least.name], found[row.name], found[most.name])
        text = mean_sd_text(MeanAndSd.of(closed), 2)
        return f"{text} ({len(closed)})" if 0 < len(closed) < len(found[row.name]) else text


def all_known(labels: LabelSettings | None) -> LabelSettings | None:
    """The same labels at the server, if it has any, and all at the clients."""
    return labels.model_copy(update={"share": 1.0}) if labels is not None and labels.at == "server" else None


def untrained(run: RunResultLine) -> RunResultLine:
    """The run as it stood before its first round."""
    return msgspec.structs.replace(run, trace=run.trace[:1], best=run.trace[0])


def gaps_closed(
    least: Sequence[RunResultLine], method: Sequence[RunResultLine], most: Sequence[RunResultLine]
) -> list[float]:
    """(method − labels alone) / (all labels − labels alone), by seed; where all labels help, and all three ran."""
    low, mid, high = ({run.seed: last_score(run) for run in runs} for runs in (least, method, most))
    closed = []
    for seed, score in mid.items():
        below, above = low.get(seed), high.get(seed)
        if score is not None and below is not None and above is not None and above > below:
            closed.append((score - below) / (above - below))
    return closed
