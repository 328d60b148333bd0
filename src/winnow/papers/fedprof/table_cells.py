"""The cells of tables 1 to 3: a quantity of an algorithm, ours beside the paper's."""

from collections.abc import Callable
from dataclasses import dataclass

from winnow.papers.result_json_lines import RunResultLine
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A quantity of a run, given the table's target, and how the paper's values call it."""

    name: str
    title: str
    value: Callable[[RunResultLine, float], float | None]
    decimals: int
    """As in the paper."""
    higher_is_better: bool = False
    in_paper: bool = True
    known: Callable[[RunResultLine], bool] = lambda run: True
    """Whether a line says anything about it."""

    def better(self, ours: float, theirs: float) -> bool:
        """Whether a value is at least as good, in the paper's digits."""
        ours = round(ours, self.decimals)
        return ours >= theirs if self.higher_is_better else ours <= theirs


COLUMNS = (
    TableColumn(name="best", title="Best", value=lambda run, target: run.best, decimals=3, higher_is_better=True),
    TableColumn(
        name="test",
        title="Test",
        value=lambda run, target: run.test_best,
        decimals=3,
        higher_is_better=True,
        in_paper=False,
        known=lambda run: run.test_best is not None,
    ),
    TableColumn(name="rounds", title="Rounds", value=lambda run, target: run.rounds_to_target, decimals=0),
    TableColumn(
        name="sustained",
        title="Sustained",
        value=lambda run, target: run.rounds_to_sustained(target),
        decimals=0,
        in_paper=False,
        known=lambda run: bool(run.trace),
    ),
    TableColumn(
        name="minutes",
        title="Minutes",
        value=lambda run, target: None if run.seconds_to_target is None else run.seconds_to_target / 60,
        decimals=1,
    ),
    TableColumn(name="wh", title="Wh", value=lambda run, target: run.wh_to_target, decimals=2),
)


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """A quantity of an algorithm: the paper's mean and deviation, and our runs'."""

    column: TableColumn
    paper: MeanAndSd | None
    runs: tuple[float | None, ...]
    cut_short: bool = False
    """Whether any run ended before its time, after which it might have become better."""

    @property
    def ours(self) -> MeanAndSd | None:
        return MeanAndSd.of(self.runs)

    @property
    def complete(self) -> bool:
        """Whether every run has the quantity: one that never reached the target has no rounds to it."""
        return bool(self.runs) and None not in self.runs

    @property
    def text(self) -> str:
        text = compact_spread_text(self.ours, max(self.column.decimals, 1))
        if not self.runs or self.complete:
            return text
        reached = sum(value is not None for value in self.runs)
        return f"{text} ({reached} of {len(self.runs)})" if reached else f"none of {len(self.runs)}"

    @property
    def paper_text(self) -> str:
        return compact_spread_text(self.paper, self.column.decimals)

    @property
    def worse_than_paper(self) -> bool:
        """Whether our runs do not reach the paper's value, and would not if they went on."""
        if self.paper is None or not self.runs or (self.cut_short and not self._cannot_improve):
            return False
        return self.ours is None or not self.complete or not self.column.better(self.ours.mean, self.paper.mean)

    @property
    def _cannot_improve(self) -> bool:
        """Whether more rounds change nothing: the target has been reached, which a best score never is for good."""
        return self.complete and not self.column.higher_is_better


def compact_spread_text(spread: MeanAndSd | None, decimals: int) -> str:
    """As the paper writes it, so that both fit side by side."""
    return mean_sd_text(spread, decimals).replace(" ± ", "±")
