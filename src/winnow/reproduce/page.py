"""The pages: tables and figures of a paper, from result lines alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from winnow.report.markup import section
from winnow.report.page import page
from winnow.reproduce.blocks import Block, Text, as_html, as_markdown
from winnow.reproduce.lines import Lines
from winnow.reproduce.paper import Paper
from winnow.runs.files import one_line_errors, write_text_atomically

NOT_COMPUTED = Text("Not computed yet.")


def write_page(path: Path, paper: Paper, lines: Lines, names: Sequence[str] = ()) -> Path:
    """Write the page to `path`, whole or not at all: one file that opens offline.

    It shows the pieces of these names, or all; others where the lines hold something for them.
    """
    shown = ((title, blocks or [NOT_COMPUTED]) for title, blocks in _shown(paper, lines, names))
    sections = (section(title, *map(as_html, blocks)) for title, blocks in shown)
    with one_line_errors(path):
        write_text_atomically(path, page(paper.title, paper.lead, "".join(sections)))
    return path


def write_text_page(path: Path, paper: Paper, lines: Lines, names: Sequence[str] = ()) -> Path:
    """Write the tables, and what figures say in numbers, as Markdown."""
    parts = [f"# {paper.title}", paper.lead]
    for title, blocks in _shown(paper, lines, names):
        texts = list(filter(None, map(as_markdown, blocks)))
        parts += [f"## {title}", *texts] if texts else []
    with one_line_errors(path):
        write_text_atomically(path, "\n\n".join(parts) + "\n")
    return path


def _shown(paper: Paper, lines: Lines, names: Sequence[str]) -> Iterator[tuple[str, list[Block]]]:
    for piece in paper.pieces:
        blocks = piece.body(lines)
        if not names or piece.names & set(names) or (blocks and piece.computed(lines)):
            yield piece.title, blocks
