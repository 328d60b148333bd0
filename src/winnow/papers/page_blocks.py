"""What a table or figure shows, as values. A page renders them as HTML, a text page as Markdown without drawings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import plotly.graph_objects as go

from winnow.report import markup


@dataclass(frozen=True)
class TextBlock:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class HeadingBlock:
    """The title of what follows."""

    text: str


@dataclass(frozen=True)
class TableBlock:
    """A table whose first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class FigureBlock:
    """A figure."""

    figure: go.Figure
    caption: str


PageBlock: TypeAlias = TextBlock | HeadingBlock | TableBlock | FigureBlock


def as_html(block: PageBlock) -> str:
    match block:
        case TextBlock(text):
            return markup.paragraph(text)
        case HeadingBlock(text):
            return markup.subheading(text)
        case TableBlock(caption, header, rows):
            return markup.html_table(caption, header, rows)
        case FigureBlock(figure, caption):
            return markup.figure_html(figure, caption)


def as_markdown(block: PageBlock) -> str:
    match block:
        case TextBlock(text):
            return text
        case HeadingBlock(text):
            return f"### {text}"
        case TableBlock(caption, header, rows):
            lines = [_row(header), _row(["---"] * len(header)), *map(_row, rows)]
            return "\n".join([caption, "", *lines])
        case FigureBlock():
            return ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
