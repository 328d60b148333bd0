"""What a table or figure shows, as values. A page renders them as HTML, a text page as Markdown without drawings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import plotly.graph_objects as go

from winnow.report import markup


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Heading:
    """The title of what follows."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table whose first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Drawing:
    """A figure."""

    figure: go.Figure
    caption: str


Block: TypeAlias = Text | Heading | Grid | Drawing


def as_html(block: Block) -> str:
    match block:
        case Text(text):
            return markup.paragraph(text)
        case Heading(text):
            return markup.subheading(text)
        case Grid(caption, header, rows):
            return markup.table(caption, header, rows)
        case Drawing(figure, caption):
            return markup.drawing(figure, caption)


def as_markdown(block: Block) -> str:
    match block:
        case Text(text):
            return text
        case Heading(text):
            return f"### {text}"
        case Grid(caption, header, rows):
            lines = [_row(header), _row(["---"] * len(header)), *map(_row, rows)]
            return "\n".join([caption, "", *lines])
        case Drawing():
            return ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
