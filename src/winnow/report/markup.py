"""Pieces of HTML. Every text is escaped here, so nothing from a file can become markup."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class MarkupCell:
    """A cell that is markup already: made here, of texts that were escaped here."""

    html: str


TableCell: TypeAlias = str | MarkupCell


def link_cell(text: str, address: str) -> MarkupCell:
    return MarkupCell(link(text, address))


def setting_cell(name: str) -> MarkupCell:
    """A setting's name, which narrow columns break behind its dots and underscores and nowhere else."""
    return MarkupCell(escape(name).replace(".", ".<wbr>").replace("_", "_<wbr>"))


def checkbox_cell(name: str, value: str, label: str) -> MarkupCell:
    """A box to tick, with what it is for as its label for those who do not see the row."""
    return MarkupCell(
        f'<input type="checkbox" name="{escape(name)}" value="{escape(value)}" aria-label="{escape(label)}">'
    )


def link(text: str, address: str) -> str:
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def html_table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[TableCell]], *, texts: Collection[str] = ()
) -> str:
    """A table whose first column names the row; the others are numbers, or `texts` by their titles."""
    kinds = ["text" if title in texts else "" for title in header]
    body = "".join(_row(row, kinds) for row in rows)
    return f'<div class="scroll">{_table(caption, header, kinds, body)}</div>'


def searchable_table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[TableCell]],
    *,
    texts: Collection[str],
    verdicts: str,
    folded: Collection[int],
) -> str:
    """A table that the page's script lets readers search and sort. It hides the `folded` rows until they are wanted;
    without scripts, all are there. The column `verdicts` is coloured by what it says.
    """
    kinds = ["verdict" if title == verdicts else "text" if title in texts else "" for title in header]
    body = "".join(_row(row, kinds, folded=place in folded) for place, row in enumerate(rows))
    more = f'<button type="button">Show all {len(rows):,}</button>' if folded else ""
    return (
        '<div class="scroll searchable"><p class="search" hidden>'
        f'<input type="search" placeholder="Search" aria-label="Search the table">{more}</p>'
        f"{_table(caption, header, kinds, body)}</div>"
    )


def _table(caption: str, header: Sequence[str], kinds: Sequence[str], body: str) -> str:
    head = "".join(
        f'<th scope="col"{_class(kind)}>{escape(title)}</th>' for title, kind in zip(header, kinds, strict=True)
    )
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: Sequence[TableCell], kinds: Sequence[str], *, folded: bool = False) -> str:
    cells = "".join(
        f"<td{_class(kind)}{_verdict(cell, kind)}>{_content(cell)}</td>"
        for cell, kind in zip(row[1:], kinds[1:], strict=True)
    )
    return f'<tr{" data-folded" * folded}><th scope="row">{_content(row[0])}</th>{cells}</tr>'


def _content(cell: TableCell) -> str:
    return cell.html if isinstance(cell, MarkupCell) else escape(cell)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _verdict(cell: TableCell, kind: str) -> str:
    return f' data-verdict="{_content(cell)}"' if kind == "verdict" else ""


def card(title: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p class="value">{escape(value)}</p>'
        f'<p class="note">{escape(note)}</p></div>'
    )


def verdict_card(verdict: str, value: str, note: str) -> str:
    return (
        f'<div class="card" data-verdict="{escape(verdict)}"><h3>{escape(verdict.capitalize())}</h3>'
        f'<p class="value">{escape(value)}</p><p class="note">{escape(note)}</p></div>'
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
