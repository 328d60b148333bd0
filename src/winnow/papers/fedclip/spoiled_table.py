"""FedCLIP among spoiled clients, with and without FedProf's selection."""

from dataclasses import dataclass

from winnow.papers.fedclip.adapter_methods import FedClipMethod, method_run
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

SPOILED = (
    "data.left_out=['photo']",
    "data.clients=30",
    "data.partition={name='iid'}",
    "data.local_test=0.0",
    "data.corruptions=[{name='irrelevant', fraction=0.2}, {name='salt-and-pepper', fraction=0.2, density=0.5}]",
    "select={name='uniform', count=6}",
)
SPOILED_METHODS = (
    FedClipMethod(name="zero-shot", title="Zero-shot", algorithm="fedclip", settings=("model.kind=none",), rounds=1),
    FedClipMethod(name="uniform", title="FedCLIP, uniform selection", algorithm="fedclip"),
    FedClipMethod(
        name="profile",
        title="FedCLIP, selection by profile",
        algorithm="fedclip",
        settings=("select={name='profile', count=6}",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class SpoiledTable(PaperItem):
    """30 clients with pictures of all three styles, 12 of them spoiled, of which six train in each round."""

    methods: tuple[FedClipMethod, ...]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            method_run(self.name, method, method.name, SPOILED, seed, wanted)
            for seed in range(wanted.seeds)
            for method in self.methods
        ]

    def has_results(self, lines: ResultLines) -> bool:
        return any(run_result_lines(lines, self.name, method.name) for method in self.methods)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = {method: run_result_lines(lines, self.name, method.name) for method in self.methods}
        rows = [
            [
                f"{method.title} ({len(runs)})",
                mean_sd_text(MeanAndSd.of(_percent(run.test_best) for run in runs), 1),
                mean_sd_text(MeanAndSd.of(_percent(run.best) for run in runs), 1),
            ]
            for method, runs in found.items()
            if runs
        ]
        about = (
            "The three styles' pictures are dealt to 30 clients at random. Six clients have patterns that are no"
            " pictures, six pictures under heavy noise; the encoder sees what they have. Six train in each round."
        )
        if not rows:
            return [TextBlock(about), TextBlock("Not run: there are no records of it.")]
        header = ("Method", "Photographs, left out", "Reference set")
        return [TextBlock(about), TableBlock("Accuracy in %; number of seeds in brackets.", header, rows)]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
