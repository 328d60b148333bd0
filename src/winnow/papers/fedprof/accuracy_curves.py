"""Figures 5 and 6: accuracy by round, for full and for partial aggregation on all three tasks."""

from dataclasses import dataclass

from winnow.papers.fedprof.tables import ALGORITHM_TITLES, ResultTable
from winnow.papers.figures import metric_curves
from winnow.papers.page_blocks import FigureBlock, PageBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, run_result_lines


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
        traced = {ALGORITHM_TITLES[name]: runs for name, runs in groups.items() if any(run.trace for run in runs)}
        caption = f"{self.table.preset}, {self.group} aggregation: accuracy on the reference set; dashed, the target"
        return [FigureBlock(metric_curves(traced, "accuracy", self.table.target), caption)] if traced else []
