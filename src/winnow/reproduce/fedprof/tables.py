"""Tables 1 to 3: best accuracy, and rounds, time and energy to a target, of both groups of algorithms."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from winnow.experiment.resolve import resolve
from winnow.experiment.schema import Experiment
from winnow.learn.algorithm import Recipe
from winnow.report import Spread
from winnow.report.numbers import spread_text
from winnow.reproduce.blocks import Block, Grid, Heading, Text
from winnow.reproduce.fedprof.content import content, note
from winnow.reproduce.lines import Lines, RunLine, runs_of
from winnow.reproduce.paper import Piece, Run, Wanted

GROUPS = ("full", "partial")
FIRST = " ★"
NAMES = {
    "fedavg": "FedAvg",
    "cfcfm": "CFCFM",
    "fedprof-full": "FedProf",
    "fedavg-rp": "FedAvg-RP",
    "fedprox": "FedProx",
    "fedadam": "FedAdam",
    "afl": "AFL",
    "clustered": "Clustered sampling",
    "fedbn": "FedBN",
    "fedprof": "FedProf",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A quantity of a run, and how the paper's values call it."""

    name: str
    title: str
    value: Callable[[RunLine], float | None]
    decimals: int
    """As in the paper."""
    higher_is_better: bool = False

    def better(self, ours: float, theirs: float) -> bool:
        """Whether a value is at least as good, in the paper's digits."""
        ours = round(ours, self.decimals)
        return ours >= theirs if self.higher_is_better else ours <= theirs


COLUMNS = (
    Column(name="best", title="Best", value=lambda run: run.best, decimals=3, higher_is_better=True),
    Column(name="rounds", title="Rounds", value=lambda run: run.rounds_to_target, decimals=0),
    Column(
        name="minutes",
        title="Minutes",
        value=lambda run: None if run.seconds_to_target is None else run.seconds_to_target / 60,
        decimals=1,
    ),
    Column(name="wh", title="Wh", value=lambda run: run.wh_to_target, decimals=2),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A quantity of an algorithm: the paper's mean and deviation, and our runs'."""

    column: Column
    paper: Spread | None
    runs: tuple[float | None, ...]

    @property
    def ours(self) -> Spread | None:
        return Spread.of(self.runs)

    @property
    def complete(self) -> bool:
        """Whether every run has the quantity: one that never reached the target has no rounds to it."""
        return bool(self.runs) and None not in self.runs

    @property
    def text(self) -> str:
        text = _compact(self.ours, max(self.column.decimals, 1))
        if not self.runs or self.complete:
            return text
        reached = sum(value is not None for value in self.runs)
        return f"{text} ({reached} of {len(self.runs)})" if reached else f"none of {len(self.runs)}"

    @property
    def paper_text(self) -> str:
        return _compact(self.paper, self.column.decimals)

    @property
    def behind(self) -> bool:
        """Whether our runs do not reach the paper's value."""
        if self.paper is None or not self.runs:
            return False
        return self.ours is None or not self.complete or not self.column.better(self.ours.mean, self.paper.mean)


@dataclass(frozen=True, kw_only=True)
class ResultTable(Piece):
    """One of tables 1 to 3. `settings` are those of a group where they differ from the preset's, the same for all."""

    preset: str
    target: float
    rounds: Mapping[str, int]
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    about: str
    heavy: bool = False

    @property
    def wants_accelerator(self) -> bool:
        return self.heavy

    def unknown(self) -> list[str]:
        return [name for group in GROUPS for name in self.values(group) if name not in Recipe.known]

    def runs(self, wanted: Wanted) -> list[Run]:
        return [run for group in GROUPS for run in self.group_runs(group, wanted)]

    def group_runs(self, group: str, wanted: Wanted) -> list[Run]:
        return [
            Run(of=self.name, algorithm=algorithm, experiment=self._experiment(group, algorithm, seed, wanted))
            for algorithm in self.values(group)
            if algorithm in Recipe.known
            for seed in range(wanted.seeds)
        ]

    def _experiment(self, group: str, algorithm: str, seed: int, wanted: Wanted) -> Experiment:
        sets = (*self.settings.get(group, ()), *wanted.sets)
        rounds = wanted.rounds or self.rounds[group]
        return resolve(self.preset, sets=sets, algorithm=algorithm, seed=seed, rounds=rounds)

    def values(self, group: str) -> dict[str, dict[str, Any]]:
        """The paper's cells of a group, by algorithm."""
        cells: dict[str, dict[str, Any]] = content("values.toml")[self.name][group]
        return cells

    def cells(self, group: str, lines: Lines) -> dict[str, tuple[Cell, ...]]:
        return {
            algorithm: tuple(
                Cell(
                    column=column,
                    paper=_published(cells.get(column.name)),
                    runs=tuple(column.value(run) for run in runs_of(lines, self.name, algorithm)),
                )
                for column in COLUMNS
            )
            for algorithm, cells in self.values(group).items()
        }

    def body(self, lines: Lines) -> list[Block]:
        pieces: list[Block] = [Text(self.about)]
        for group in GROUPS:
            cells = self.cells(group, lines)
            caption = (
                f"Up to {self.rounds[group]} rounds, seeds in brackets; rounds, minutes and Wh until {self.target:g},"
                " with the number of runs that reached it where not all did. ★ first in the group."
            )
            pieces += [
                Heading(f"{group.capitalize()} aggregation"),
                Grid(caption, self._header(), _rows(cells)),
                *(
                    Text(text)
                    for text in (
                        *self._cut_short(group, lines),
                        *self._shortfalls(group, cells),
                        *self._besides(group, lines),
                    )
                ),
            ]
        return pieces

    def _header(self) -> list[str]:
        pairs = [(f"{column.title}, paper", f"{column.title}, ours") for column in COLUMNS]
        return ["Algorithm", *(title for pair in pairs for title in pair)]

    def _shortfalls(self, group: str, cells: Mapping[str, Sequence[Cell]]) -> list[str]:
        """Where we do not reach the paper's value, and why: one sentence an algorithm, one reason for those alike."""
        by_reason: dict[str, list[str]] = {}
        for algorithm, row in cells.items():
            behind = [cell.column.title for cell in row if cell.behind]
            if behind:
                reason = note(self.name, group, algorithm)
                by_reason.setdefault(reason, []).append(f"{NAMES[algorithm]} ({', '.join(behind)})")
        return [f"Behind the paper: {'; '.join(said)}. {reason}".strip() for reason, said in by_reason.items()]

    def _cut_short(self, group: str, lines: Lines) -> list[str]:
        """Runs that were ended before their time, after which they might have become better."""
        runs = [run for algorithm in self.values(group) for run in runs_of(lines, self.name, algorithm)]
        ended = sorted(run.rounds for run in runs if run.rounds < self.rounds[group])
        if not ended:
            return []
        return [f"{len(ended)} of {len(runs)} runs ended early, after {ended[0]} to {ended[-1]} rounds."]

    def _besides(self, group: str, lines: Lines) -> list[str]:
        """The energy of those who trained and were not merged, which the paper does not count; personal accuracy."""
        said = []
        for algorithm in self.values(group):
            runs, name = runs_of(lines, self.name, algorithm), NAMES[algorithm]
            if invited := Spread.of(run.invited_wh_to_target for run in runs):
                said.append(f"{name}: Wh of merged clients, as in the paper; of all invited, {_compact(invited, 2)}.")
            if own := Spread.of(run.own_best for run in runs):
                said.append(f"{name}: {_compact(own, 3)} by each client's own model on samples of its own.")
        return said


def _rows(cells: Mapping[str, Sequence[Cell]]) -> list[list[str]]:
    first = {place: _first(column, place, cells) for place, column in enumerate(COLUMNS)}
    return [[_name(algorithm, row), *_row(algorithm, row, first)] for algorithm, row in cells.items()]


def _name(algorithm: str, row: Sequence[Cell]) -> str:
    seeds = len(row[0].runs)
    return f"{NAMES[algorithm]} ({seeds})" if seeds else NAMES[algorithm]


def _row(algorithm: str, row: Sequence[Cell], first: Mapping[int, str | None]) -> list[str]:
    pairs = [
        (cell.paper_text, cell.text + (FIRST if first[place] == algorithm else "")) for place, cell in enumerate(row)
    ]
    return [text for pair in pairs for text in pair]


def _first(column: Column, place: int, cells: Mapping[str, Sequence[Cell]]) -> str | None:
    """The best algorithm of a group among those that always have the quantity; nobody is first among one."""
    if sum(bool(row[place].runs) for row in cells.values()) < 2:
        return None
    spreads = {name: row[place].ours for name, row in cells.items() if row[place].complete}
    means = {name: spread.mean for name, spread in spreads.items() if spread}
    best = max if column.higher_is_better else min
    return best(means, key=lambda name: means[name], default=None)


def _published(pair: Sequence[float] | None) -> Spread | None:
    return None if pair is None else Spread(mean=pair[0], sd=pair[1], count=0)


def _compact(spread: Spread | None, decimals: int) -> str:
    """As the paper writes it, so that both fit side by side."""
    return spread_text(spread, decimals).replace(" ± ", "±")
