"""Accuracy on a style that nobody trained on, and on each client's own, for all methods and targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from winnow.config.resolve import resolve
from winnow.data.pacs import DOMAINS
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

PRESET = "fedclip-pacs"
FROZEN_ITEM = "unseen"
"""The item that has FedCLIP's own runs."""
SHORT = {"art_painting": "Art", "cartoon": "Cartoon", "photo": "Photo", "sketch": "Sketch"}
PUBLISHED = {
    "scratch-fedavg": (31.54, 43.69, 44.55, 36.29),
    "scratch-fedprox": (29.79, 46.80, 44.67, 35.12),
    "whole-fedavg": (53.08, 80.08, 90.00, 76.99),
    "whole-fedprox": (66.06, 87.33, 91.68, 78.42),
    "fedclip": (96.34, 97.91, 99.76, 85.59),
}
"""The paper's table 2, with CLIP (ViT-B/32) and AlexNet."""

SCRATCH = (
    "model={name='cnn', channels=[8, 16], hidden=128, norm='group'}",
    "local={name='sgd', epochs=1, batch_size=32, learning_rate=0.01, momentum=0.9}",
    "data.scale=default",
)
WHOLE = (
    "model={name='efficientnet-lite0', side=128}",
    "local={name='sgd', epochs=1, batch_size=32, learning_rate=0.01, momentum=0.9}",
    "data.scale=none",
    "engine.execution=loop",
)
PROBE = ("model={name='linear'}",)


@dataclass(frozen=True, kw_only=True)
class FedClipMethod:
    """A row: an algorithm with its settings."""

    name: str
    title: str
    algorithm: str
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    """At most so many, where a run takes thousands of times as long as others."""
    alone: bool = False
    """Whether each client trains by itself; the row is the mean over them."""
    rounds: int | None = None

    @property
    def encodes(self) -> bool:
        """Whether the encoder is frozen: settings that name pixels train a network on them."""
        return not any(setting.startswith("data.scale") for setting in self.settings)


FEDCLIP_ROW = FedClipMethod(name="fedclip", title="FedCLIP (attention adapter)", algorithm="fedclip")
FROZEN = (
    FedClipMethod(name="zero-shot", title="Zero-shot", algorithm="fedclip", settings=("model.kind=none",), rounds=1),
    FedClipMethod(name="alone", title="FedCLIP's adapter, each client alone", algorithm="fedclip", alone=True),
    FedClipMethod(name="probe", title="Linear probe, aligned features", algorithm="fedclip", settings=PROBE),
    FedClipMethod(
        name="probe-1280",
        title="Linear probe, all 1,280 features",
        algorithm="fedclip",
        settings=(*PROBE, "encode.align=none"),
    ),
    FedClipMethod(
        name="text-head", title="Head that starts as the texts", algorithm="fedclip", settings=("model.kind=head",)
    ),
    FedClipMethod(name="text", title="Text adapter", algorithm="fedclip", settings=("model.kind=text",)),
    FedClipMethod(
        name="bottleneck", title="Bottleneck adapter", algorithm="fedclip", settings=("model.kind=bottleneck",)
    ),
    FEDCLIP_ROW,
)
TRAINED = (
    FedClipMethod(name="scratch-fedavg", title="FedAvg, small network", algorithm="fedavg", settings=SCRATCH),
    FedClipMethod(name="scratch-fedprox", title="FedProx, small network", algorithm="fedprox", settings=SCRATCH),
    FedClipMethod(name="whole-fedavg", title="FedAvg, whole encoder", algorithm="fedavg", settings=WHOLE, seeds=2),
    FedClipMethod(name="whole-fedprox", title="FedProx, whole encoder", algorithm="fedprox", settings=WHOLE, seeds=2),
)


def method_run(
    item: str, method: FedClipMethod, name: str, sets: Sequence[str], seed: int, wanted: ReproductionOptions
) -> PaperRun:
    """The run of a row."""
    given = (*sets, *method.settings, *wanted.sets)
    rounds = method.rounds or wanted.rounds
    experiment = resolve(PRESET, sets=given, algorithm=method.algorithm, seed=seed, rounds=rounds)
    if not method.encodes:
        experiment = experiment.model_copy(update={"encode": None})
    return PaperRun(item=item, algorithm=name, experiment=experiment)


@dataclass(frozen=True, kw_only=True)
class DomainTable(PaperItem):
    """Four tasks, in each of which another style is left out."""

    methods: tuple[FedClipMethod, ...]
    about: str
    heavy: bool = False

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            method_run(self.name, method, name, sets, seed, wanted)
            for seed in range(wanted.seeds)
            for method in self.methods
            if method.seeds is None or seed < method.seeds
            for target in DOMAINS
            for name, sets in _cases(method, target)
        ]

    def has_results(self, lines: ResultLines) -> bool:
        return any(_scores(self.name, method, lines, "test") for method in self.methods)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        if not self.has_results(lines):
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        header = ("Method", *(SHORT[domain] for domain in DOMAINS), "Mean")
        unseen, own = (
            [self._row(method, lines, what) for method in self.methods if _scores(self.name, method, lines, what)]
            for what in ("test", "own")
        )
        published = [_published_row(method) for method in self.methods if method.name in PUBLISHED]
        return [
            TextBlock(self.about),
            TableBlock("Accuracy on the style left out, in %; number of seeds in brackets.", header, unseen),
            TableBlock(
                "Accuracy on the clients' own pictures, in %, by the style left out: a fifth of each client's pictures,"
                " mean over the three clients.",
                header,
                own,
            ),
            TableBlock("The paper's accuracy on the style left out, with CLIP and AlexNet, in %.", header, published),
            *self._verdicts(lines),
        ]

    def _row(self, method: FedClipMethod, lines: ResultLines, what: str) -> list[str]:
        found = _scores(self.name, method, lines, what)
        cells = [
            mean_sd_text(MeanAndSd.of(found[domain].values()), 1) if domain in found else "–" for domain in DOMAINS
        ]
        seeds = max(len(each) for each in found.values())
        return [f"{method.title} ({seeds})", *cells, _text(_means(found).values())]

    def _verdicts(self, lines: ResultLines) -> list[PageBlock]:
        """FedCLIP against the rows of this table, seed by seed."""
        own = _means(_scores(FROZEN_ITEM, FEDCLIP_ROW, lines, "test"))
        rows = []
        for method in self.methods:
            theirs = _means(_scores(self.name, method, lines, "test"))
            gaps = [own[seed] - theirs[seed] for seed in own if seed in theirs]
            if gaps and method is not FEDCLIP_ROW:
                rows.append([method.title, _text(gaps), f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"])
        caption = "FedCLIP's mean over the four styles left out, less each other row's, in points, paired by seed."
        return [TableBlock(caption, ("FedCLIP less …", "Points", "Seeds in which it is higher"), rows)] if rows else []


def _text(values: Iterable[float]) -> str:
    return mean_sd_text(MeanAndSd.of(values), 1)


def _cases(method: FedClipMethod, target: str) -> list[tuple[str, tuple[str, ...]]]:
    """The names and settings of the runs that make one cell."""
    left_out = (f"data.left_out=['{target}']",)
    if not method.alone:
        return [(f"{method.name}-{target}", left_out)]
    clients = [domain for domain in DOMAINS if domain != target]
    return [(f"{method.name}-{client}-{target}", (*left_out, _only(client, clients))) for client in clients]


def _only(client: str, clients: Sequence[str]) -> str:
    trust = ", ".join(f"{each} = {float(each == client)}" for each in clients)
    return f"select={{name = 'trust', count = 1, trust = {{{trust}}}}}"


def _scores(item: str, method: FedClipMethod, lines: ResultLines, what: str) -> dict[str, dict[int, float]]:
    """By target and seed, in %; where clients train alone, the mean over them."""
    found: dict[str, dict[int, float]] = {}
    for target in DOMAINS:
        runs = [run_result_lines(lines, item, name) for name, _ in _cases(method, target)]
        by_seed = [{run.seed: score for run in each if (score := _score(run, what)) is not None} for each in runs]
        seeds = set.intersection(*map(set, by_seed)) if by_seed else set()
        if seeds:
            found[target] = {seed: 100 * fmean(each[seed] for each in by_seed) for seed in sorted(seeds)}
    return found


def _score(run: RunResultLine, what: str) -> float | None:
    return run.test_best if what == "test" else run.local_test_best


def _means(found: dict[str, dict[int, float]]) -> dict[int, float]:
    """The mean over all four targets, by seed."""
    seeds = set.intersection(*(set(each) for each in found.values())) if len(found) == len(DOMAINS) else set()
    return {seed: fmean(each[seed] for each in found.values()) for seed in sorted(seeds)}


def _published_row(method: FedClipMethod) -> list[str]:
    values = PUBLISHED[method.name]
    return [method.title, *(f"{value:.2f}" for value in values), f"{fmean(values):.2f}"]
