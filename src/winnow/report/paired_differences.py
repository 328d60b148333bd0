"""How algorithms differ on the same seeds: seeds that are easy for one are easy for the others, and cancel out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from winnow.report.number_format import MISSING, MeanAndSd
from winnow.runs import Summary

BySeed: TypeAlias = Mapping[int, Summary]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanAndError:
    """The mean of paired differences and its standard error, sd/√n (None for a single pair)."""

    mean: float
    error: float | None
    pairs: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[float | None, float | None]]) -> "MeanAndError | None":
        """Of own − other, over the pairs in which both are known; None without any."""
        spread = MeanAndSd.of(own - other for own, other in pairs if own is not None and other is not None)
        if spread is None:
            return None
        error = None if spread.sd is None else spread.sd / spread.count**0.5
        return cls(mean=spread.mean, error=error, pairs=spread.count)

    def text(self, decimals: int) -> str:
        """`−0.0061 ± 0.0010`."""
        mean = f"{self.mean:+,.{decimals}f}".replace("-", "−")
        return mean if self.error is None else f"{mean} ± {self.error:,.{decimals}f}"


def difference_text(difference: MeanAndError | None, decimals: int) -> str:
    return MISSING if difference is None else difference.text(decimals)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """An algorithm minus the one it is compared with, over the seeds that both have run."""

    algorithm: str
    compared_with: str
    pairs: int
    best: MeanAndError | None
    test_best: MeanAndError | None
    rounds_to_target: MeanAndError | None
    rounds_to_sustained_target: MeanAndError | None


def paired_differences(runs: Iterable[tuple[str, int, Summary]]) -> list[PairedDifference]:
    """Each algorithm minus the first, from (algorithm, seed, summary) triples; none where no seed was run by both."""
    groups: dict[str, dict[int, Summary]] = {}
    for algorithm, seed, summary in runs:
        groups.setdefault(algorithm, {})[seed] = summary
    if not groups:
        return []
    (first, others), *rest = groups.items()
    return [_difference(name, own, first, others) for name, own in rest if own.keys() & others.keys()]


def _difference(algorithm: str, own: BySeed, first: str, others: BySeed) -> PairedDifference:
    seeds = sorted(own.keys() & others.keys())

    def paired(value: Callable[[Summary], float | None]) -> MeanAndError | None:
        return MeanAndError.of((value(own[seed]), value(others[seed])) for seed in seeds)

    return PairedDifference(
        algorithm=algorithm,
        compared_with=first,
        pairs=len(seeds),
        best=paired(lambda summary: summary.best.value if summary.best else None),
        test_best=paired(lambda summary: summary.test_best.value if summary.test_best else None),
        rounds_to_target=paired(lambda summary: summary.rounds_to_target),
        rounds_to_sustained_target=paired(lambda summary: summary.rounds_to_sustained_target),
    )


def difference_cells(
    differences: Sequence[PairedDifference], metric: str, target: float | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The header and the lines of a table of differences; without a target there are no rounds to it."""
    compared_with = differences[0].compared_with if differences else ""
    header = (f"Minus {compared_with}", "Seeds", f"Best {metric}", f"Test {metric}", "Rounds to target", "Sustained")
    lines = [
        (
            each.algorithm,
            f"{each.pairs}",
            difference_text(each.best, 4),
            difference_text(each.test_best, 4),
            difference_text(each.rounds_to_target, 1),
            difference_text(each.rounds_to_sustained_target, 1),
        )
        for each in differences
    ]
    shown = len(header) if target is not None else 4
    return header[:shown], [line[:shown] for line in lines]
