"""Figures 7 and 8: whom FedProf invites, and how it scores clients round by round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from winnow.report import figures
from winnow.report.tables import PARTICIPATION_HEADER, participation_table
from winnow.report.traces import Participation, Scores
from winnow.reproduce.blocks import Block, Drawing, Grid
from winnow.reproduce.fedprof.tables import ResultTable
from winnow.reproduce.lines import Counts, Lines, RunLine, runs_of
from winnow.reproduce.paper import Piece, Run, Wanted

FEDPROF = "fedprof"


@dataclass(frozen=True, kw_only=True)
class _OfFedProf(Piece):
    """A figure about the runs of FedProf in one of the tables."""

    table: ResultTable

    @property
    def wants_accelerator(self) -> bool:
        return self.table.wants_accelerator

    def runs(self, wanted: Wanted) -> list[Run]:
        return [run for run in self.table.group_runs("partial", wanted) if run.algorithm == FEDPROF]

    def shown(self, lines: Lines) -> list[RunLine]:
        return [run for run in runs_of(lines, self.table.name, FEDPROF) if run.counts is not None]


@dataclass(frozen=True, kw_only=True)
class InvitationsFigure(_OfFedProf):
    """Figure 7: invitations by client, clients ordered by what was done to their data."""

    def body(self, lines: Lines) -> list[Block]:
        runs = self.shown(lines)
        if not runs:
            return []
        counts = [_participation(run.counts) for run in runs]
        caption = (
            f"{self.table.preset}, seed {runs[0].seed}: invitations by client, grouped by what was done to its data"
        )
        summary = f"Mean over {len(runs)} seeds." if len(runs) > 1 else f"Seed {runs[0].seed}."
        return [
            Drawing(figures.participation(counts[0]), caption),
            Grid(summary, PARTICIPATION_HEADER, participation_table(counts)),
        ]


@dataclass(frozen=True, kw_only=True)
class ScoresFigure(_OfFedProf):
    """Figure 8: scores λ/Λ by round, one row a client."""

    def body(self, lines: Lines) -> list[Block]:
        run = next((run for run in self.shown(lines) if run.scores), None)
        if run is None:
            return []
        scores = Scores(rounds=np.arange(1, len(run.scores) + 1), values=np.array(run.scores))
        caption = (
            f"{self.table.preset}, seed {run.seed}: how likely each client was to be drawn, relative to a uniform draw"
        )
        return [Drawing(figures.score_map(scores, _participation(run.counts)), caption)]


def _participation(counts: Counts | None) -> Participation:
    assert counts is not None, "only runs with counts are shown"
    return Participation(
        labels=counts.labels, of_client=_whole(counts.condition), invitations=_whole(counts.invitations)
    )


def _whole(values: Sequence[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)
