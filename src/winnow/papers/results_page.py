"""The pages: tables and figures of a paper, from result lines alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from winnow.papers.page_blocks import PageBlock, TextBlock, as_html, as_markdown
from winnow.papers.paper import Paper
from winnow.papers.result_json_lines import ResultLines
from winnow.report.html_page import page
from winnow.report.markup import section
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

NOT_COMPUTED = TextBlock("No results yet.")


def write_html_page(path: Path, paper: Paper, lines: ResultLines, names: Sequence[str] = ()) -> Path:
    """Write the page to `path`, whole or not at all: one file that opens offline.

    It shows the items of these names, or all; others where the lines hold something for them.
    """
    shown = ((title, blocks or [NOT_COMPUTED]) for title, blocks in _shown(paper, lines, names))
    sections = (section(title, *map(as_html, blocks)) for title, blocks in shown)
    with one_line_errors(path):
        write_text_atomically(path, page(paper.title, paper.lead, "".join(sections)))
    return path


def write_markdown_page(path: Path, paper: Paper, lines: ResultLines, names: Sequence[str] = ()) -> Path:
    """Write the tables, and what figures say in numbers, as Markdown."""
    parts = [f"# {paper.title}", paper.lead]
    for title, blocks in _shown(paper, lines, names):
        texts = list(filter(None, map(as_markdown, blocks)))
        parts += [f"## {title}", *texts] if texts else []
    with one_line_errors(path):
        write_text_atomically(path, "\n\n".join(parts) + "\n")
    return path


def _shown(paper: Paper, lines: ResultLines, names: Sequence[str]) -> Iterator[tuple[str, list[PageBlock]]]:
    named = paper.select_items(names)
    for item in paper.items:
        blocks = item.blocks(lines)
        if item in named or (blocks and item.has_results(lines)):
            yield item.title, blocks
