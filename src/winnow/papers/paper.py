"""What a paper is made of here: tables and figures, each of which knows its runs and draws itself from result lines.

Another paper is another `Paper` value in a package of its own, listed in `winnow.papers.PAPERS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winnow.config.schema import Experiment
from winnow.core import ConfigError, suggest
from winnow.fleet.response_time_model import TimedFleetSettings
from winnow.papers.energy_of_all_selected import wh_of_all_selected
from winnow.papers.page_blocks import PageBlock
from winnow.papers.result_json_lines import ResultLine, ResultLines, RunResultLine, run_result_line
from winnow.runs import RunFolder


@dataclass(frozen=True, kw_only=True)
class ReproductionOptions:
    """What a user may change about a reproduction."""

    seeds: int = 5
    rounds: int | None = None
    """Rounds of every run and epochs of every measurement, in the place of the paper's."""
    sets: tuple[str, ...] = ()
    data_directory: Path | None = None
    workers: int = 1
    """Processes that measure at once, where a table is not made of runs."""
    known: ResultLines = field(default_factory=dict)
    """What has been computed so far: settings of later runs may be chosen by it."""


@dataclass(frozen=True, kw_only=True)
class PaperRun:
    """A federated run that a table or figure needs. Several pieces may ask for the same one."""

    item: str
    algorithm: str
    experiment: Experiment

    @property
    def key(self) -> tuple[str, ...]:
        return self.item, self.algorithm, str(self.experiment.seed)

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.item / f"{self.algorithm}-seed{self.experiment.seed}"

    def line(self, out: Path, wanted: ReproductionOptions) -> RunResultLine:
        """What came of it, once it is finished."""
        view = RunFolder.open(self.folder(out))
        clocked = isinstance(self.experiment.fleet, TimedFleetSettings)  # which knows no energy
        return run_result_line(
            view,
            item=self.item,
            algorithm=self.algorithm,
            selected_wh=None if clocked else wh_of_all_selected(view, self.experiment, wanted.data_directory),
            clocked=clocked,
        )


@dataclass(frozen=True, kw_only=True)
class PaperItem(ABC):
    """A table or a figure of a paper."""

    name: str
    title: str

    @property
    def names(self) -> set[str]:
        """What a user may call it: its name, or that of the figure of which it is a case."""
        return {self.name, self.figure}

    @property
    def figure(self) -> str:
        """The figure of which it is a case, by the name up to the first dash."""
        return self.name.partition("-")[0]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        """The federated runs whose lines it shows."""
        return []

    def unknown_algorithms(self) -> list[str]:
        """Algorithms of the paper that this version does not know."""
        return []

    def data_sets(self, wanted: ReproductionOptions) -> set[str]:
        """What must be on this machine to compute it."""
        return {run.experiment.data.name for run in self.runs(wanted)}

    @property
    def needs_gpu(self) -> bool:
        """Whether a CPU would take days, so that it is computed on one only when asked for by name."""
        return False

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        """Whether there is nothing to measure besides runs, or it has been measured."""
        return True

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> Iterable[ResultLine]:
        """What it shows besides runs, as far as the lines do not have it."""
        return []

    def has_results(self, lines: ResultLines) -> bool:
        """Whether its body, where it has one, is made of lines rather than of what is known without any run."""
        return True

    @abstractmethod
    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        """Its part of the page; empty where the lines hold nothing for it."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper's tables and figures, in the order of the page."""

    name: str
    title: str
    lead: str
    items: tuple[PaperItem, ...]

    def select_items(self, names: Sequence[str]) -> list[PaperItem]:
        """The items of these names; all where none is named.

        `fig3` stands for all cases of that figure, unless an item has just that name: then it is meant alone.
        """
        known = {name for item in self.items for name in item.names}
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name} has no table or figure {name!r}; {suggest(name, known)}")
        figures = set(names) - {item.name for item in self.items}
        return [item for item in self.items if not names or item.name in names or item.figure in figures]
