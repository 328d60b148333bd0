"""Figures 5 and 6: accuracy by round, for full and for partial aggregation on all three tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from winnow.papers.fedprof.table_row import table_row
from winnow.papers.fedprof.tables import ResultTable
from winnow.papers.figures import metric_curves
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report.number_format import MISSING

SHOWN_ROUNDS = (5, 10, 20, 40, 80, 160, 320)
"""At which the curves are also told in numbers."""


@dataclass(frozen=True, kw_only=True)
class AccuracyCurvesFigure(PaperItem):
    """The traces of one group in one table's runs; the paper's figure has three of these side by side."""

    table: ResultTable
    group: str

    @property
    def needs_gpu(self) -> bool:
        return self.table.needs_gpu

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return self.table.group_runs(self.group, wanted)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        groups = {name: run_result_lines(lines, self.table.name, name) for name in self.table.values(self.group)}
        traced = {table_row(name).title: runs for name, runs in groups.items() if any(run.trace for run in runs)}
        caption = f"{self.table.preset}, {self.group} aggregation: accuracy on the reference set; dashed, the target"
        if not traced:
            return []
        return [FigureBlock(metric_curves(traced, "accuracy", self.table.target), caption), _values(traced)]


def _values(traced: Mapping[str, Sequence[RunResultLine]]) -> TableBlock:
    """The mean over seeds at some rounds, of the runs that came so far."""
    longest = max(len(run.trace) - 1 for runs in traced.values() for run in runs)
    rounds = [each for each in SHOWN_ROUNDS if each <= longest]
    rows = [[name, *(_value(runs, at) for at in rounds)] for name, runs in traced.items()]
    return TableBlock(
        "Accuracy on the reference set after so many rounds, mean over seeds; runs in brackets where not all of an"
        " algorithm's came so far.",
        ["Algorithm", *map(str, rounds)],
        rows,
    )


def _value(runs: Sequence[RunResultLine], at: int) -> str:
    reached = [value for run in runs if at < len(run.trace) and (value := run.trace[at]) is not None]
    if not reached:
        return MISSING
    return f"{fmean(reached):.3f}" + (f" ({len(reached)})" if len(reached) < len(runs) else "")
