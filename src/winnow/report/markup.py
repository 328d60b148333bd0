"""Pieces of HTML. Every text is escaped here, so nothing from a file can become markup."""

from collections.abc import Iterable, Sequence
from html import escape

import plotly.graph_objects as go


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the row; the others are numbers."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "".join(_row(row) for row in rows)
    return (
        '<div class="scroll"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[str]) -> str:
    first, *others = row
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'


def card(title: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p class="value">{escape(value)}</p>'
        f'<p class="note">{escape(note)}</p></div>'
    )


def cards(pieces: Iterable[str]) -> str:
    return f'<div class="cards">{"".join(pieces)}</div>'


def section(title: str, *pieces: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(pieces)}</section>"


def subheading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def bullet_list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def figure_html(figure: go.Figure, caption: str) -> str:
    """A figure as data; the page's script draws it in the colours of the reader's scheme."""
    data = figure.to_json().replace("<", "\\u003c")  # so that no text in it can end the script element
    return (
        f'<figure><div class="plot" role="img" aria-label="{escape(caption)}">'
        f'<script type="application/json">{data}</script></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def side_by_side(*pieces: str) -> str:
    return f'<div class="pair">{"".join(pieces)}</div>'


def collapsible(title: str, text: str) -> str:
    """Long text behind a heading that opens it."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
