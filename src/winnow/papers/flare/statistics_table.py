"""Figure 7: statistics and a histogram over the rows of several owners, against those of the pooled rows."""

import csv
import gzip
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

import numpy as np
import plotly.graph_objects as go

from winnow.analytics.question import read_question
from winnow.analytics.stats.report import StatisticsReport
from winnow.core import stream
from winnow.data.directories import data_directories
from winnow.papers.page_blocks import FigureBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, ReproductionOptions
from winnow.papers.result_json_lines import MeasuredResultLine, ResultLines
from winnow.report.colours import colour
from winnow.report.figures import apply_layout

OWNERS, BINS = 5, 20
COLUMNS = {"age": (0, (0, 100)), "education-num": (4, (0, 20)), "hours-per-week": (12, (0, 100))}
"""Of Adult's rows: the column's place, and its bounds."""
MEAN, SD, ROWS = "mean", "sd", "rows"
POOLED = "pooled "
"""Before the name of what a program with all rows works out."""


@dataclass(frozen=True, kw_only=True)
class StatisticsTable(PaperItem):
    """Adult's training rows, dealt to five owners; everything opened is a sum over all of them."""

    about: str

    def measured(self, wanted: ReproductionOptions, lines: ResultLines) -> bool:
        return _adult(wanted.data_directory) is None or (self.name, "age", "0") in lines

    def measure(self, wanted: ReproductionOptions, lines: ResultLines) -> Iterator[MeasuredResultLine]:
        file = _adult(wanted.data_directory)
        assert file is not None
        pooled = _columns(file)
        with TemporaryDirectory(prefix="winnow-statistics-") as folder:
            report = _asked(_federation(pooled, Path(folder)))
        for name, values in pooled.items():
            column = report[name]
            counts, edges = column.histogram, column.edges
            held = {ROWS: column.n, MEAN: column.mean, SD: column.sd}
            exact = {ROWS: len(values), MEAN: fmean(values), SD: stdev(values)}
            found = np.histogram(values, edges)[0].tolist()
            yield MeasuredResultLine(
                item=self.name,
                row=name,
                seed=0,
                values={
                    **{key: math.nan if value is None else float(value) for key, value in held.items()},
                    **{POOLED + key: float(value) for key, value in exact.items()},
                    **{f"bin {edge:g}": float(count or 0) for edge, count in zip(edges, counts, strict=False)},
                    **{f"{POOLED}bin {edge:g}": float(n) for edge, n in zip(edges, found, strict=False)},
                },
            )

    def has_results(self, lines: ResultLines) -> bool:
        return bool(self._lines(lines))

    def _lines(self, lines: ResultLines) -> list[MeasuredResultLine]:
        return [line for line in lines.values() if isinstance(line, MeasuredResultLine) and line.item == self.name]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        found = self._lines(lines)
        if not found:
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        header = ["Column", *chain.from_iterable((name.capitalize(), "Pooled") for name in (ROWS, MEAN, SD)), "Bins"]
        rows = [[line.row, *_compared(line.values), _bins_text(line.values)] for line in found]
        return [
            TextBlock(self.about),
            TableBlock("Statistics of five owners' rows, and of the same rows in one place.", header, rows),
            FigureBlock(_histogram(found[0]), f"{found[0].row}: rows by value, over all owners"),
        ]


def _compared(values: Mapping[str, float]) -> list[str]:
    digits = {ROWS: 0, MEAN: 6, SD: 6}
    return [f"{values[prefix + name]:,.{places}f}" for name, places in digits.items() for prefix in ("", POOLED)]


def _bins(values: Mapping[str, float], prefix: str = "") -> dict[float, float]:
    start = f"{prefix}bin "
    return {float(key.removeprefix(start)): value for key, value in values.items() if key.startswith(start)}


def _bins_text(values: Mapping[str, float]) -> str:
    """Bins with fewer rows than the owners' minimum are not told."""
    ours, exact = _bins(values), _bins(values, POOLED)
    equal = sum(ours[edge] == exact[edge] for edge in exact)
    withheld = sum(ours[edge] == 0 < exact[edge] for edge in exact)
    return f"{equal} of {len(exact)} equal" + (f", {withheld} too small to tell" if withheld else "")


def _histogram(line: MeasuredResultLine) -> go.Figure:
    bins = _bins(line.values)
    figure = go.Figure(go.Bar(x=list(bins), y=list(bins.values()), marker={"color": colour(0)}))
    figure.update_layout(xaxis_title=line.row, yaxis_title="rows", bargap=0.05)
    return apply_layout(figure, height=300)


def _adult(data_directory: Path | None) -> Path | None:
    files = (each / "tabular" / "adult.data.gz" for each in data_directories(data_directory))
    return next((file for file in files if file.is_file()), None)


def _columns(file: Path) -> dict[str, list[float]]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        rows = [row for row in csv.reader(text, skipinitialspace=True) if row]  # the last line is empty
    return {name: [float(row[place]) for row in rows] for name, (place, _) in COLUMNS.items()}


def _federation(pooled: Mapping[str, list[float]], folder: Path) -> Path:
    """A file an owner, and what is declared of them."""
    names, rows = list(pooled), list(zip(*pooled.values(), strict=True))
    owner = stream(0, "flare", "owners").integers(0, OWNERS, len(rows))
    files = [f"owner-{number}.csv" for number in range(OWNERS)]
    for number, file in enumerate(files):
        with (folder / file).open("w", encoding="utf-8", newline="") as opened:
            held = (map(int, row) for row, whose in zip(rows, owner, strict=True) if whose == number)
            csv.writer(opened).writerows([names, *held])
    lines = ["[tables.people]", f"files = {files}".replace("'", '"'), "[tables.people.columns]"]
    lines += [
        f'{name} = {{ level = "protected", type = "integer", bounds = [{low}, {high}] }}'
        for name, (_, (low, high)) in COLUMNS.items()
    ]
    federation = folder / "federation.toml"
    federation.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return federation


def _asked(federation: Path) -> StatisticsReport:
    from winnow.analytics.simulate import ask_simulated  # noqa: PLC0415 - needs the extra `query`

    question = read_question({"kind": "statistics", "table": "people", "columns": list(COLUMNS), "histograms": BINS})
    return StatisticsReport(ask_simulated(question, federation))
