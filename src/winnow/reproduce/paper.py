"""What a paper is made of here: tables and figures, each of which knows its runs and draws itself from result lines.

Another paper is another `Paper` value in a package of its own, listed in `winnow.reproduce.PAPERS`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.core import ConfigError, suggest
from winnow.experiment.schema import Experiment
from winnow.fleet.timed import Timed
from winnow.learn.algorithms.fedprof import ByProfile
from winnow.reproduce.blocks import Block
from winnow.reproduce.in_vain import wh_of_all_invited
from winnow.reproduce.lines import Line, Lines, RunLine, line_of
from winnow.runs import RunFolder


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user may change about a reproduction."""

    seeds: int = 5
    rounds: int | None = None
    """Rounds of every run and epochs of every measurement, in the place of the paper's."""
    sets: tuple[str, ...] = ()
    data_directory: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A federated run that a table or figure needs. Several pieces may ask for the same one."""

    of: str
    algorithm: str
    experiment: Experiment

    @property
    def key(self) -> tuple[str, ...]:
        return self.of, self.algorithm, str(self.experiment.seed)

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.of / f"{self.algorithm}-seed{self.experiment.seed}"

    def line(self, out: Path, wanted: Wanted) -> RunLine:
        """What came of it, once it is finished."""
        view = RunFolder.open(self.folder(out))
        clocked = isinstance(self.experiment.fleet, Timed)  # which knows no energy
        return line_of(
            view,
            of=self.of,
            algorithm=self.algorithm,
            invited_wh=None if clocked else wh_of_all_invited(view, self.experiment, wanted.data_directory),
            counted=isinstance(self.experiment.select, ByProfile),
            clocked=clocked,
        )


@dataclass(frozen=True, kw_only=True)
class Piece(ABC):
    """A table or a figure of a paper."""

    name: str
    title: str

    @property
    def names(self) -> set[str]:
        """What a user may call it: its name, or that of the figure of which it is a case."""
        return {self.name, self.name.partition("-")[0]}

    def runs(self, wanted: Wanted) -> list[Run]:
        """The federated runs whose lines it shows."""
        return []

    def unknown(self) -> list[str]:
        """Algorithms of the paper that this version does not know."""
        return []

    def data_sets(self, wanted: Wanted) -> set[str]:
        """What must be on this machine to compute it."""
        return {run.experiment.data.name for run in self.runs(wanted)}

    @property
    def wants_accelerator(self) -> bool:
        """Whether a CPU would take days, so that it is computed on one only when asked for by name."""
        return False

    def measured(self, wanted: Wanted, lines: Lines) -> bool:
        """Whether there is nothing to measure besides runs, or it has been measured."""
        return True

    def measure(self, wanted: Wanted, lines: Lines) -> Sequence[Line]:
        """What it shows besides runs, as far as the lines do not have it."""
        return []

    def computed(self, lines: Lines) -> bool:
        """Whether its body, where it has one, is made of lines rather than of what is known without any run."""
        return True

    @abstractmethod
    def body(self, lines: Lines) -> list[Block]:
        """Its part of the page; empty where the lines hold nothing for it."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper's tables and figures, in the order of the page."""

    name: str
    title: str
    lead: str
    pieces: tuple[Piece, ...]

    def named(self, names: Sequence[str]) -> list[Piece]:
        """The pieces of these names, where `fig3` stands for all cases of that figure; all where none is named."""
        known = {name for piece in self.pieces for name in piece.names}
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name} has no {name!r}; {suggest(name, known)}")
        return [piece for piece in self.pieces if not names or piece.names & set(names)]
