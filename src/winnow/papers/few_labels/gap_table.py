"""A table of methods for few labels: how much of the gap between few and all labels each closes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

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
    candidates: tuple[str, ...] = ()
    """What it chooses from, in the place of its table's candidates: as many of them. Each is one setting or several,
    with spaces between them.
    """
    tuned_as: str = ""
    """The row whose choice is this one's, too."""


ALL_LABELS = Row(name="all-labels", title="All labels, at the clients", algorithm="fixmatch", all_labels=True)
"""FedAvg with weakly changed samples: FixMatch with nothing left to label."""
ALL_LABELS_AND_SERVER = replace(ALL_LABELS, title="All labels, at clients and server", settings=("client.clip=1",))
"""The same where the server has labels, too: it goes on training on them, and clients bound gradients as it does."""

LABELLED_AT_SERVER = Row(name="labelled-only", title="Labelled only, at the server", algorithm="server-only")
FIXMATCH = Row(name="fixmatch", title="FixMatch", algorithm="fixmatch")

HEADER = ("Method", "Accuracy", "Gap closed", "Best round")
TUNING_SEEDS = (100,)
"""Seeds that candidates are compared on, and no table shows."""


def candidate_name(row: Row, candidate: str) -> str:
    """What runs of a candidate are called among a table's."""
    return f"{row.tuned_as or row.name}@{candidate}"


def tuning_score(item: str, row: Row, candidate: str, lines: ResultLines) -> float | None:
    """A candidate's mean over the tuning seeds, once it has run with all of them."""
    runs = {run.seed: last_score(run) for run in run_result_lines(lines, item, candidate_name(row, candidate))}
    scores = [score for seed in TUNING_SEEDS if (score := runs.get(seed)) is not None]
    return fmean(scores) if len(scores) == len(TUNING_SEEDS) else None


@dataclass(frozen=True, kw_only=True)
class GapTable(PaperItem):
    """A setting. The first row has the labels alone, the last one all labels. Where there are candidates, every row
    runs with the one that is best on the tuning seeds.
    """

    preset: str
    rows: tuple[Row, ...]
    about: str
    settings: tuple[str, ...] = ()
    heavy: bool = False
    candidates: tuple[str, ...] = ()
    tuned_in: "GapTable | None" = None
    """The table of the same rows whose choice is this one's, too."""

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    @property
    def names(self) -> set[str]:
        return {self.name}

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        tuned = {row.tuned_as or row.name for row in self.rows if not row.untrained_of}
        return (self.tuned_in or self)._tuning_runs(tuned, wanted) + [
            self._run(row, row.name, chosen, seed, wanted)
            for seed in range(wanted.seeds)
            for row in self.rows
            if not row.untrained_of and (chosen := self.chosen(row, wanted.known)) is not None
        ]

    def _tuning_runs(self, rows: Collection[str], wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            self._run(row, candidate_name(row, each), each, seed, wanted)
            for row in self.rows
            if row.name in rows
            for each in self._candidates(row)
            for seed in TUNING_SEEDS
        ]

    def chosen(self, row: Row, lines: ResultLines) -> str | None:
        """The candidate that a row runs with, the first of equals; None as long as it is not known."""
        if self.tuned_in is not None:
            return self.tuned_in.chosen(row, lines)
        candidates = self._candidates(row)
        scores = [tuning_score(self.name, row, each, lines) for each in candidates]
        known = [score for score in scores if score is not None]
        if len(known) < len(candidates):
            return None
        return candidates[known.index(max(known))] if candidates else ""

    def _candidates(self, row: Row) -> tuple[str, ...]:
        return (row.candidates or self.candidates) if self.candidates else ()

    def _run(self, row: Row, name: str, candidate: str, seed: int, wanted: ReproductionOptions) -> PaperRun:
        sets = (*self.settings, *row.settings, *candidate.split(), *wanted.sets)
        experiment = resolve(self.preset, sets=sets, algorithm=row.algorithm, seed=seed, rounds=wanted.rounds)
        if row.all_labels:
            data = experiment.data.model_copy(update={"labels": all_known(experiment.data.labels)})
            experiment = experiment.model_copy(update={"data": data})
        return PaperRun(item=self.name, algorithm=name, experiment=experiment)

    def has_results(self, lines: ResultLines) -> bool:
        return any(run_result_lines(lines, self.name, row.name) for row in self.rows)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = {row.name: self._result_lines(row, lines) for row in self.rows}
        if not any(found.values()):
            missing = TextBlock("Not run: there are no records of it.")
            return [TextBlock(self.about), missing, *self._tuning_table(lines)]
        rounds = sorted({run.rounds for runs in found.values() for run in runs})
        lasted = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        caption = (
            f"{lasted} rounds; number of seeds in brackets. Accuracy on the reference set, which nobody trains on, as"
            f" the mean over the last {LAST_ROUNDS} rounds."
        )
        table = TableBlock(caption, HEADER, [self._cells(row, found) for row in self.rows])
        return [TextBlock(self.about), table, *self._tuning_table(lines)]

    def _tuning_table(self, lines: ResultLines) -> list[PageBlock]:
        rows = []
        for row in self.rows:
            candidates = self._candidates(row)
            scores = [tuning_score(self.name, row, each, lines) for each in candidates]
            chosen = self.chosen(row, lines)
            cells = [_candidate_text(each, score, chosen) for each, score in zip(candidates, scores, strict=True)]
            if any(score is not None for score in scores):
                rows.append([row.title, *cells])
        if not rows:
            return []
        caption = (
            "What rows are tuned with: as many candidates for each, scored as above on seed"
            f" {' and '.join(map(str, TUNING_SEEDS))}, which is in no table. A star marks the choice."
        )
        return [TableBlock(caption, ["Method", *("Candidate" for _ in rows[0][1:])], rows)]

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


def _candidate_text(candidate: str, score: float | None, chosen: str | None) -> str:
    shown = "not run" if score is None else f"{score:.4f}"
    return f"{candidate.replace('local.', '').replace('client.', '')}: {shown}{' *' if chosen == candidate else ''}"


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
