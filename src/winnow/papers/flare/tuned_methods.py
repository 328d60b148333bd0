"""The algorithms of figure 4, and which of its candidates each of them uses."""

from dataclasses import dataclass

from winnow.config.resolve import resolve
from winnow.papers.last_rounds import last_score
from winnow.papers.paper import PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, run_result_lines

PRESET, TUNING = "flare-cifar10", "fig4-tuning"
TUNING_SEED = 1000
"""Not among the seeds that are reported."""


@dataclass(frozen=True, kw_only=True)
class TunedMethod:
    """An algorithm, its candidates, and the final score that NVFlare's own example states for it at α = 0.1."""

    name: str
    title: str
    algorithm: str
    candidates: tuple[tuple[str, ...], ...]
    published: float
    settings: tuple[str, ...] = ()

    def candidate_name(self, index: int) -> str:
        return f"{self.name}-{index + 1}"

    def run(self, item: str, name: str, sets: tuple[str, ...], seed: int, wanted: ReproductionOptions) -> PaperRun:
        experiment = resolve(
            PRESET,
            sets=(*self.settings, *sets, *wanted.sets),
            algorithm=self.algorithm,
            seed=seed,
            rounds=wanted.rounds,
        )
        return PaperRun(item=item, algorithm=name, experiment=experiment)

    def tuning_scores(self, lines: ResultLines) -> list[float | None]:
        """By candidate; None where it has not been run."""
        found = (run_result_lines(lines, TUNING, self.candidate_name(index)) for index in range(len(self.candidates)))
        return [last_score(runs[0]) if runs else None for runs in found]

    def chosen(self, lines: ResultLines) -> tuple[str, ...] | None:
        """The candidate with the best score; None until all of them have been run."""
        scores = self.tuning_scores(lines)
        complete = [score for score in scores if score is not None]
        return self.candidates[scores.index(max(complete))] if len(complete) == len(scores) else None


def _rates(*rates: float) -> tuple[tuple[str, ...], ...]:
    return tuple((f"local.learning_rate={rate:g}",) for rate in rates)


FEDAVG = TunedMethod(
    name="fedavg",
    title="FedAvg",
    algorithm="fedavg-rp",
    candidates=_rates(0.003, 0.01, 0.03, 0.05),
    published=0.7733,
)
METHODS = (
    FEDAVG,
    TunedMethod(
        name="fedprox",
        title="FedProx",
        algorithm="fedprox",
        settings=("aggregate.weights=size",),
        candidates=tuple((*rate, f"client.mu={mu}") for rate in _rates(0.01, 0.03) for mu in ("1e-5", "0.01")),
        published=0.7615,
    ),
    TunedMethod(
        name="fedopt",
        title="FedOpt (SGD with momentum at the server)",
        algorithm="fedavgm",
        candidates=tuple((*rate, f"server.momentum={beta}") for rate in _rates(0.01, 0.03) for beta in ("0.6", "0.9")),
        published=0.8013,
    ),
    TunedMethod(
        name="scaffold",
        title="SCAFFOLD",
        algorithm="scaffold",
        candidates=tuple(
            (*rate, f"aggregate.weights={weights}") for rate in _rates(0.01, 0.03) for weights in ("size", "uniform")
        ),
        published=0.8222,
    ),
)
"""FedAvg's clients count by size, and so do FedProx's here, which differs by its term alone."""
