"""The pages: every table and figure of a paper, from result lines alone."""

from pathlib import Path

from winnow.report.markup import section
from winnow.report.page import page
from winnow.reproduce.blocks import Text, as_html, as_markdown
from winnow.reproduce.lines import Lines
from winnow.reproduce.paper import Paper
from winnow.runs.files import one_line_errors, write_text_atomically

NOT_COMPUTED = Text("Not computed yet.")


def write_page(path: Path, paper: Paper, lines: Lines) -> Path:
    """Write the page to `path`, whole or not at all: one file that opens offline."""
    shown = ((piece.title, piece.body(lines) or [NOT_COMPUTED]) for piece in paper.pieces)
    sections = (section(title, *map(as_html, blocks)) for title, blocks in shown)
    with one_line_errors(path):
        write_text_atomically(path, page(paper.title, paper.lead, "".join(sections)))
    return path


def write_text_page(path: Path, paper: Paper, lines: Lines) -> Path:
    """Write the tables, and what figures say in numbers, as Markdown."""
    parts = [f"# {paper.title}", paper.lead]
    for piece in paper.pieces:
        blocks = list(filter(None, map(as_markdown, piece.body(lines))))
        parts += [f"## {piece.title}", *blocks] if blocks else []
    with one_line_errors(path):
        write_text_atomically(path, "\n\n".join(parts) + "\n")
    return path
