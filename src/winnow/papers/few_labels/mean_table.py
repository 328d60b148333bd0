"""A table of means over tables that differ in what has no labels: a column each, and how far the mean comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from winnow.papers.few_labels.gap_table import GapTable, Row
from winnow.papers.last_rounds import last_score
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem
from winnow.papers.result_json_lines import ResultLines, run_result_lines
from winnow.report import MeanAndSd
from winnow.report.number_format import mean_sd_text


@dataclass(frozen=True, kw_only=True)
class MeanTable(PaperItem):
    """Of tables with the same rows; it has no runs of its own."""

    about: str
    tables: tuple[GapTable, ...]
    columns: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        return {self.name}

    def has_results(self, lines: ResultLines) -> bool:
        return any(table.has_results(lines) for table in self.tables)

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        if not self.has_results(lines):
            return [TextBlock(self.about), TextBlock("Not run: there are no records of it.")]
        rows = self.tables[0].rows
        least = self.scores(rows[0], lines)
        header = ["Method", *self.columns, "Mean", f"Mean − {rows[0].title.lower()}"]
        caption = (
            "Mean over seeds, whose number is in brackets; the last two columns with standard deviations over seeds,"
            " the last one of differences seed by seed."
        )
        return [
            TextBlock(self.about),
            TableBlock(caption, header, [_cells(row, self.scores(row, lines), least, len(header)) for row in rows]),
        ]

    def scores(self, row: Row, lines: ResultLines) -> dict[int, list[float]]:
        """By seed a row's score in every table, for seeds that it has run with in all of them."""
        found = [
            {run.seed: score for run in run_result_lines(lines, table.name, row.name) if (score := last_score(run))}
            for table in self.tables
        ]
        common = sorted(set.intersection(*(set(each) for each in found)))
        return {seed: [each[seed] for each in found] for seed in common}


def _cells(row: Row, scores: dict[int, list[float]], least: dict[int, list[float]], width: int) -> Sequence[str]:
    if not scores:
        return [row.title, "not run", *["–"] * (width - 2)]
    ahead = [fmean(own) - fmean(least[seed]) for seed, own in scores.items() if seed in least]
    return [
        f"{row.title} ({len(scores)})",
        *(f"{fmean(column):.4f}" for column in zip(*scores.values(), strict=True)),
        mean_sd_text(MeanAndSd.of(map(fmean, scores.values())), 4),
        "–" if scores == least or not ahead else mean_sd_text(MeanAndSd.of(ahead), 4),
    ]
