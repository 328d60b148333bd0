"""Accuracy on a style that nobody trained on, and on each client's own, for all methods and targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from winnow.data.pacs import DOMAINS
from winnow.papers.fedclip.adapter_methods import FEDCLIP_ROW, PUBLISHED, SHORT, FedClipMethod, cases, method_run
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text

TUNING_SEEDS = (100,)
"""Seeds that rates are compared on, and no table shows."""

Score: TypeAlias = Literal["best", "test_best", "local_test_best"]
"""Of a run's best round by the reference set: on that set, on the style left out, on the clients' own pictures."""


@dataclass(frozen=True, kw_only=True)
class DomainTable(PaperItem):
    """Four tasks, in each of which another style is left out. Where there are rates to choose from, every row has the
    one that is best for it on the tuning seeds' reference sets, by the mean over the four tasks.
    """

    methods: tuple[FedClipMethod, ...]
    about: str
    heavy: bool = False
    rates: tuple[float, ...] = ()
    fedclip: "DomainTable | None" = None
    """The table with FedCLIP's own runs, where this has none."""

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        tuning = [
            run
            for method in self.methods
            for rate in self._candidates(method)
            for seed in TUNING_SEEDS
            for run in self._task_runs(method, rate, seed, wanted)
        ]
        chosen = {method: self.chosen(method, wanted.known) for method in self.methods}
        return tuning + [
            run
            for seed in range(wanted.seeds)
            for method in self.methods
            if (method.seeds is None or seed < method.seeds)
            if chosen[method] is not None or not self._candidates(method)
            for run in self._task_runs(method, chosen[method], seed, wanted)
        ]

    def _task_runs(
        self, method: FedClipMethod, rate: float | None, seed: int, wanted: ReproductionOptions
    ) -> list[PaperRun]:
        own = () if rate is None else (f"local.learning_rate={rate:g}",)
        return [
            method_run(self.name, method, run_name(case, rate), (*own, *sets), seed, wanted)
            for target in DOMAINS
            for case, sets in cases(method, target)
        ]

    def _candidates(self, method: FedClipMethod) -> tuple[float, ...]:
        return self.rates if method.trains else ()

    def chosen(self, method: FedClipMethod, lines: ResultLines) -> float | None:
        """The rate that a row runs with, the first of equals; None where there is none, or it is not known yet."""
        scores = [self.tuning_score(method, rate, lines) for rate in self._candidates(method)]
        known = [score for score in scores if score is not None]
        return self.rates[known.index(max(known))] if known and len(known) == len(scores) else None

    def tuning_score(self, method: FedClipMethod, rate: float, lines: ResultLines) -> float | None:
        """The mean over tasks and tuning seeds, once all of them have run."""
        found = self._by_target(method, rate, lines, "best", TUNING_SEEDS)
        scores = [score for each in found.values() for score in each.values()]
        return fmean(scores) if len(scores) == len(DOMAINS) * len(TUNING_SEEDS) else None

    def scores(self, method: FedClipMethod, lines: ResultLines, what: Score) -> dict[str, dict[int, float]]:
        """By target and reported seed, in %, with the row's own rate; as long as none is chosen, with the first that
        was run.
        """
        rate = self.chosen(method, lines)
        tried = self._candidates(method) if rate is None else (rate,)
        found = (self._by_target(method, each, lines, what, range(TUNING_SEEDS[0])) for each in (tried or (None,)))
        return next((each for each in found if each), {})

    def _by_target(
        self, method: FedClipMethod, rate: float | None, lines: ResultLines, what: Score, seeds: Sequence[int]
    ) -> dict[str, dict[int, float]]:
        """Where clients train alone, the mean over them."""
        found: dict[str, dict[int, float]] = {}
        for target in DOMAINS:
            runs = [run_result_lines(lines, self.name, run_name(case, rate)) for case, _ in cases(method, target)]
            known = [{run.seed: score for run in each if (score := getattr(run, what)) is not None} for each in runs]
            both = [seed for seed in seeds if all(seed in each for each in known)]
            if both:
                found[target] = {seed: 100 * fmean(each[seed] for each in known) for seed in both}
        return found

    def has_results(self, lines: ResultLines) -> bool:
        return any(self.scores(method, lines, "test_best") for method in self.methods)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        if not self.has_results(lines):
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        header = ("Method", *(SHORT[domain] for domain in DOMAINS), "Mean")
        found: list[list[list[str]]] = [
            [self._row(method, scores) for method in self.methods if (scores := self.scores(method, lines, what))]
            for what in ("test_best", "local_test_best")
        ]
        unseen, own = found
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
            *self._tuning_table(lines),
        ]

    def _row(self, method: FedClipMethod, found: dict[str, dict[int, float]]) -> list[str]:
        cells = [
            mean_sd_text(MeanAndSd.of(found[domain].values()), 1) if domain in found else "–" for domain in DOMAINS
        ]
        seeds = max(len(each) for each in found.values())
        return [f"{method.title} ({seeds})", *cells, _text(_means(found).values())]

    def _verdicts(self, lines: ResultLines) -> list[PageBlock]:
        """FedCLIP against the rows of this table, seed by seed."""
        own = _means((self.fedclip or self).scores(FEDCLIP_ROW, lines, "test_best"))
        rows = []
        for method in self.methods:
            theirs = _means(self.scores(method, lines, "test_best"))
            gaps = [own[seed] - theirs[seed] for seed in own if seed in theirs]
            if gaps and method is not FEDCLIP_ROW:
                rows.append([method.title, _text(gaps), f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"])
        caption = "FedCLIP's mean over the four styles left out, less each other row's, in points, paired by seed."
        return [TableBlock(caption, ("FedCLIP less …", "Points", "Seeds in which it is higher"), rows)] if rows else []

    def _tuning_table(self, lines: ResultLines) -> list[PageBlock]:
        rows = []
        for method in self.methods:
            scores = [self.tuning_score(method, rate, lines) for rate in self._candidates(method)]
            chosen = self.chosen(method, lines)
            if any(score is not None for score in scores):
                cells = [_tuned_text(score, rate == chosen) for rate, score in zip(self.rates, scores, strict=True)]
                rows.append([method.title, *cells])
        caption = (
            "What rates were chosen by: accuracy on the reference set in %, mean over the four tasks, on seed"
            f" {' and '.join(map(str, TUNING_SEEDS))}, which is in no other table. A star marks the choice."
        )
        header = ("Method", *(f"{rate:g}" for rate in self.rates))
        return [TableBlock(caption, header, rows)] if rows else []


def run_name(case: str, rate: float | None) -> str:
    """What runs of a case with a rate are called."""
    return case if rate is None else f"{case}@{rate:g}"


def _tuned_text(score: float | None, is_chosen: bool) -> str:
    return "not run" if score is None else f"{score:.2f}{' *' if is_chosen else ''}"


def _text(values: Iterable[float]) -> str:
    return mean_sd_text(MeanAndSd.of(values), 1)


def _means(found: dict[str, dict[int, float]]) -> dict[int, float]:
    """The mean over all four targets, by seed."""
    seeds = set.intersection(*(set(each) for each in found.values())) if len(found) == len(DOMAINS) else set()
    return {seed: fmean(each[seed] for each in found.values()) for seed in sorted(seeds)}


def _published_row(method: FedClipMethod) -> list[str]:
    values = PUBLISHED[method.name]
    return [method.title, *(f"{value:.2f}" for value in values), f"{fmean(values):.2f}"]
