"""Figure 6: accuracy by participants and by losses; and the same rules on real crowds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from winnow.data.directories import data_directories
from winnow.papers.paper import ReproductionOptions
from winnow.papers.result_json_lines import ResultLines
from winnow.papers.truth.curve_item import CurveItem, Missing
from winnow.papers.truth.known_truth import accuracy, read_crowd
from winnow.papers.truth.leavers import estimate_with_leavers
from winnow.papers.truth.simulated_run import ADAPTIVE, AS_IS, KEPT, RULES, LeavingRule, traffic_lights

REPEATS = 10
"""Of a seed; five seeds make the paper's 50."""
DEFAULT_PARTICIPANTS, DEFAULT_LOSS = 60, 0.05
SUM = "sum, α = 3"


@dataclass(frozen=True, kw_only=True)
class LightsFigure(CurveItem):
    """Synthetic traffic lights; `by` says what the x axis is."""

    by: str

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        places = (20.0, 40.0, 60.0, 80.0, 100.0) if self.by == "participants" else (0.0, 0.01, 0.05, 0.1)
        return [(name, places) for name in (*(rule.name for rule in RULES), SUM)]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        method = "sum" if series == SUM else "logistic"
        rule = ADAPTIVE[-1] if series == SUM else next(each for each in RULES if each.name == series)
        for x in places:
            participants, loss = (int(x), DEFAULT_LOSS) if self.by == "participants" else (DEFAULT_PARTICIPANTS, x)
            yield fmean(
                self._accuracy(participants, loss, rule, REPEATS * seed + number, method) for number in range(REPEATS)
            )

    def _accuracy(self, participants: int, loss: float, rule: LeavingRule, seed: int, method: str) -> float:
        answers, truth = traffic_lights(participants, seed)
        return accuracy(estimate_with_leavers(answers, rule, dropout=loss, seed=seed, method=method), truth)


@dataclass(frozen=True, kw_only=True)
class CrowdFigure(CurveItem):
    """The same on a set of real answers, if it is in the data folder's `crowd`."""

    crowd: str
    losses: tuple[float, ...] = (0.0, 0.05, 0.1)
    repeats: int = 8

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        return [(rule.name, self.losses) for rule in (AS_IS, ADAPTIVE[-1], KEPT)]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        folder = crowd_folder(self.crowd, wanted.data_directory)
        assert folder is not None
        rule = next(each for each in RULES if each.name == series)
        crowd, truth = read_crowd(folder)
        for loss in places:
            seeds = [self.repeats * seed + number for number in range(self.repeats if loss else 1)]
            runs = (estimate_with_leavers(crowd.arrays, rule, dropout=loss, seed=each) for each in seeds)
            yield fmean(accuracy(found, truth) for found in runs)

    def missing(self, wanted: ReproductionOptions, lines: ResultLines) -> Missing:
        """A set that is not on this machine is left out."""
        return super().missing(wanted, lines) if crowd_folder(self.crowd, wanted.data_directory) is not None else {}


def crowd_folder(name: str, data_directory: Path | None) -> Path | None:
    """Where a set of answers lies: label.csv (item, worker, label) and truth.csv (item, truth)."""
    places = (each / "crowd" / name for each in data_directories(data_directory))
    return next((place for place in places if (place / "label.csv").is_file()), None)
