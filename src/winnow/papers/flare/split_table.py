"""Figure 6: split learning against the same network in one place, in accuracy and in time."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.core import RoundFinished
from winnow.data import DataSettings, load
from winnow.data.types import DataSet
from winnow.learn.metrics import METRICS
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_json_lines import MeasuredResultLine, ResultLines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.simulate_split import SimulatedSplit
from winnow.vertical.split_plan import SplitPlan
from winnow.vertical.split_workflow import REFERENCE

IMAGES, LABELS = "images", "labels"
ACCURACY, SECONDS = "accuracy", "seconds"
POOLED, SPLIT, OVERLAPPING, U_SHAPE = "pooled", "split", "split-pipelined", "split-u"
ROWS = {
    POOLED: "In one place, plain PyTorch",
    SPLIT: "Images | labels, `winnow.split`",
    OVERLAPPING: "the same, `pipeline=2`",
    U_SHAPE: "U shape: the middle at the server",
}
Network = Callable[[int], tuple[nn.Module, nn.Module, nn.Module]]


@dataclass(frozen=True, kw_only=True)
class SplitTable(PaperItem):
    """All rows train the same network on the same images in the same batches; each scores the same test images."""

    data_set: str
    network: Network
    epochs: int
    learning_rate: float
    momentum: float
    about: str

    def data_sets(self, wanted: ReproductionOptions) -> set[str]:
        return {self.data_set}

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return not self._missing(wanted, lines)

    def _missing(self, wanted: ReproductionOptions, lines: ResultLines) -> list[tuple[str, int]]:
        rows = ((row, seed) for seed in range(wanted.seeds) for row in ROWS)
        return [(row, seed) for row, seed in rows if (self.name, row, str(seed)) not in lines]

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> Iterator[MeasuredResultLine]:
        x, y, official = self._samples(wanted)
        for row, seed in self._missing(wanted, lines):
            plan = self._plan(row, seed, wanted.rounds or self.epochs, official / len(y))
            score, seconds = _trained_in_place(plan, x, y) if row == POOLED else _trained_apart(plan, x, y)
            yield MeasuredResultLine(
                item=self.name, row=row, seed=seed, values={ACCURACY: round(score, 5), SECONDS: round(seconds, 2)}
            )

    def _samples(self, wanted: ReproductionOptions) -> tuple[Tensor, Tensor, int]:
        """All images and labels, and how many of them are to be test images."""
        data = load(DataSettings(name=self.data_set), wanted.data_directory)
        assert isinstance(data, DataSet)
        return torch.as_tensor(data.x), torch.as_tensor(data.y), len(data.y) // 7

    def _plan(self, row: str, seed: int, epochs: int, test: float) -> SplitPlan:
        bottom, middle, head = self.network(seed)
        apart = row == U_SHAPE
        return SplitPlan(
            bottoms={IMAGES: bottom},
            middle=middle if apart else None,
            top=head if apart else nn.Sequential(middle, head),
            labels=LABELS,
            metric=METRICS["accuracy"],
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            epochs=epochs,
            test=test,
            pipeline=2 if row == OVERLAPPING else 1,
            seed=seed,
        )

    def has_results(self, lines: ResultLines) -> bool:
        return bool(self._lines(lines))

    def _lines(self, lines: ResultLines) -> list[MeasuredResultLine]:
        return [line for line in lines.values() if isinstance(line, MeasuredResultLine) and line.item == self.name]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = self._lines(lines)
        if not found:
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        pooled = {line.seed: line.values[ACCURACY] for line in found if line.row == POOLED}
        by_row = {row: [line for line in found if line.row == row] for row in ROWS}
        rows = [_cells(ROWS[row], of_row, pooled) for row, of_row in by_row.items() if of_row]
        header = ["", "Accuracy", "Points from one place", "Seconds of training"]
        return [TextBlock(self.about), TableBlock(CAPTION, header, rows)]


CAPTION = (
    "Number of seeds in brackets; mean ± sd. Points: difference in accuracy by seed, times 100. Seconds are those of"
    " the machine that made the records, all parties in one process on its CPU, without the set intersection."
)


def _cells(title: str, lines: Sequence[MeasuredResultLine], pooled: dict[int, float]) -> list[str]:
    gaps = [100 * (line.values[ACCURACY] - pooled[line.seed]) for line in lines if line.seed in pooled]
    return [
        f"{title} ({len(lines)})",
        mean_sd_text(MeanAndSd.of(line.values[ACCURACY] for line in lines), 4),
        mean_sd_text(MeanAndSd.of(gaps), 2),
        mean_sd_text(MeanAndSd.of(line.values[SECONDS] for line in lines), 1),
    ]


def _trained_in_place(plan: SplitPlan, x: Tensor, y: Tensor) -> tuple[float, float]:
    """What a program gets that has images and labels: the same batches, without anything of split learning."""
    network = nn.Sequential(plan.bottoms[IMAGES], plan.top)
    order, optimiser = plan.rows(len(y)), plan.optimise(network)
    assert optimiser is not None
    start = time.perf_counter()
    for epoch in range(plan.epochs):
        shuffled = order.of_epoch(epoch)
        for step in range(order.steps):
            batch = torch.from_numpy(order.of_step(shuffled, step))
            optimiser.zero_grad()
            loss = functional.cross_entropy(network(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    seconds = time.perf_counter() - start
    tested = torch.from_numpy(order.tested)
    with torch.no_grad():
        right = torch.cat([network(x[part]).argmax(1) == y[part] for part in torch.split(tested, 1024)])
    return float(right.double().mean()), seconds


def _trained_apart(plan: SplitPlan, x: Tensor, y: Tensor) -> tuple[float, float]:
    keys = tuple(f"{row:06}" for row in range(len(y)))  # owners sort keys: row by row as they are
    parts = {
        LABELS: KeyedRows(keys=keys, y=y, classes=int(y.max()) + 1),
        IMAGES: KeyedRows(keys=keys, x=x),
    }
    score, stamps = 0.0, list[float]()
    for event in SimulatedSplit.of(plan, parts).events():
        stamps.append(time.perf_counter())
        if isinstance(event, RoundFinished) and REFERENCE in event.metrics:
            score = event.metrics[REFERENCE][plan.metric.name]
    return score, stamps[-1] - stamps[0]  # the first event: common keys are known
