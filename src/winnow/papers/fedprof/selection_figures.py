"""Figures 7 and 8: whom FedProf selects, and how it scores clients round by round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.papers.fedprof.tables import ResultTable
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, SelectionCounts, run_result_lines
from winnow.report import MeanAndSd, figures
from winnow.report.number_format import mean_sd_text
from winnow.report.plot_data import ParticipationCounts, ScoreHistory
from winnow.report.tables import PARTICIPATION_HEADER, participation_table

FEDPROF = "fedprof"


@dataclass(frozen=True, kw_only=True)
class _OfFedProf(PaperItem):
    """A figure about the runs of FedProf in one of the tables."""

    table: ResultTable

    @property
    def needs_gpu(self) -> bool:
        return self.table.needs_gpu

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [run for run in self.table.group_runs("partial", wanted) if run.algorithm == FEDPROF]

    def shown(self, lines: ResultLines) -> list[RunResultLine]:
        return [run for run in run_result_lines(lines, self.table.name, FEDPROF) if run.counts is not None]


@dataclass(frozen=True, kw_only=True)
class SelectionsFigure(_OfFedProf):
    """Figure 7: selections by client, clients ordered by what was done to their data."""

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        runs = self.shown(lines)
        if not runs:
            return []
        counts = [_participation(run.counts) for run in runs]
        caption = f"{self.table.preset}, seed {runs[0].seed}: times each client was selected, grouped by data condition"
        summary = f"Mean over {len(runs)} seeds." if len(runs) > 1 else f"Seed {runs[0].seed}."
        return [
            FigureBlock(figures.participation(counts[0]), caption),
            TableBlock(summary, PARTICIPATION_HEADER, participation_table(counts)),
        ]


@dataclass(frozen=True, kw_only=True)
class ScoresFigure(_OfFedProf):
    """Figure 8: scores λ/Λ by round, one row a client."""

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        scored = [run for run in self.shown(lines) if run.scores]
        if not scored:
            return []
        run = scored[0]
        scores = ScoreHistory(rounds=np.arange(1, len(run.scores) + 1), values=np.array(run.scores))
        caption = (
            f"{self.table.preset}, seed {run.seed}: selection probability of each client, relative to uniform selection"
        )
        return [FigureBlock(figures.score_map(scores, _participation(run.counts)), caption), _scores_table(scored)]


def _scores_table(runs: Sequence[RunResultLine]) -> TableBlock:
    """Clients' probabilities relative to uniform selection, by what was done to their data."""
    labels = list(dict.fromkeys(label for run in runs if run.counts for label in run.counts.labels))
    last = min(len(run.scores) for run in runs)
    rounds = sorted({1, max(1, last // 2), last})
    rows = [[label, *(mean_sd_text(_relative_score(runs, label, at), 3) for at in rounds)] for label in labels]
    return TableBlock(
        f"Probability of being drawn next, relative to uniform selection, mean ± standard deviation over {len(runs)}"
        " seeds, by round.",
        ["Data", *map(str, rounds)],
        rows,
    )


def _relative_score(runs: Sequence[RunResultLine], label: str, at: int) -> MeanAndSd | None:
    means = []
    for run in runs:
        if run.counts and label in run.counts.labels:
            own = np.array(run.counts.condition) == run.counts.labels.index(label)
            means.append(float(np.array(run.scores[at - 1])[own].mean()) * len(own))
    return MeanAndSd.of(means)


def _participation(counts: SelectionCounts | None) -> ParticipationCounts:
    assert counts is not None, "only runs with counts are shown"
    return ParticipationCounts(
        labels=counts.labels, of_client=_whole(counts.condition), selections=_whole(counts.selections)
    )


def _whole(values: Sequence[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)
