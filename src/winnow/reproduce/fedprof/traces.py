"""Figures 5 and 6: accuracy by round, for full and for partial aggregation on all three tasks."""

from dataclasses import dataclass

from winnow.reproduce.blocks import Block, Drawing
from winnow.reproduce.drawing import curves
from winnow.reproduce.fedprof.tables import NAMES, ResultTable
from winnow.reproduce.lines import Lines, runs_of
from winnow.reproduce.paper import Piece, Run, Wanted


@dataclass(frozen=True, kw_only=True)
class TracesFigure(Piece):
    """The traces of one group in one table's runs; the paper's figure has three of these side by side."""

    table: ResultTable
    group: str

    @property
    def wants_accelerator(self) -> bool:
        return self.table.wants_accelerator

    def runs(self, wanted: Wanted) -> list[Run]:
        return self.table.group_runs(self.group, wanted)

    def body(self, lines: Lines) -> list[Block]:
        groups = {name: runs_of(lines, self.table.name, name) for name in self.table.values(self.group)}
        traced = {NAMES[name]: runs for name, runs in groups.items() if any(run.trace for run in runs)}
        caption = f"{self.table.preset}, {self.group} aggregation: accuracy on the reference set; dashed, the target"
        return [Drawing(curves(traced, "accuracy", self.table.target), caption)] if traced else []
