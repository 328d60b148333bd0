"""Figure 1: what class imbalance and low-quality data do to FedAvg on MNIST (section 3.1)."""

from dataclasses import dataclass

from winnow.config.resolve import resolve
from winnow.papers.fedprof.read_bundled_toml import read_package_toml
from winnow.papers.figures import metric_curves
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, run_result_lines
from winnow.report.number_format import MeanAndSd, mean_sd_text

IMBALANCED = "data.partition = { name = 'dominant-class', share = 0.55 }"
CORRUPTED = (
    "data.corruptions = [{ name = 'irrelevant', fraction = 0.15 }, { name = 'blur', fraction = 0.25 },"
    " { name = 'salt-and-pepper', fraction = 0.25, density = 0.3 }]"
)
CONDITIONS = {
    "iid": (),
    "non-iid": (IMBALANCED,),
    "low-quality": (CORRUPTED,),
    "non-iid-low-quality": (IMBALANCED, CORRUPTED),
}


@dataclass(frozen=True, kw_only=True)
class ConditionsFigure(PaperItem):
    """One run a condition and seed; a line's `algorithm` is the condition."""

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        setup = read_package_toml("setups.toml")[self.name]
        return [
            PaperRun(
                item=self.name,
                algorithm=condition,
                experiment=resolve(setup, sets=(*sets, *wanted.sets), seed=seed, rounds=wanted.rounds),
            )
            for condition, sets in CONDITIONS.items()
            for seed in range(wanted.seeds)
        ]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        groups = {condition: run_result_lines(lines, self.name, condition) for condition in CONDITIONS}
        if not any(groups.values()):
            return []
        best = {name: MeanAndSd.of(run.best for run in runs) for name, runs in groups.items()}
        rows = [(name, str(len(runs)), mean_sd_text(best[name], decimals=3)) for name, runs in groups.items()]
        caption = "FedAvg on MNIST, 100 clients, 30 a round: accuracy on the reference set under four data conditions"
        return [
            FigureBlock(metric_curves(groups, "accuracy"), caption),
            TableBlock("Best accuracy.", ("Condition", "Seeds", "Best"), rows),
        ]
