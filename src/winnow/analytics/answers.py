"""Answers to questions, read back from a run folder: as text and as a page."""

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.analytics.question import Answer
from winnow.core import RunError, WinnowError
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

if TYPE_CHECKING:
    from rich.console import RenderableType


PAGE_COLUMNS = 120


@contextmanager
def answer_errors() -> Iterator[None]:
    """One line in the place of whatever an answer of a wrong shape raises where it is shown: a server can send any."""
    try:
        yield
    except WinnowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError("the answer has not the shape that answers to such a question have; nothing is shown") from error


@answer_errors()
def render_answer(answer: Answer) -> "RenderableType":
    """What a terminal shows."""
    if answer["kind"] == "statistics":
        from winnow.analytics.stats.report import StatisticsReport  # noqa: PLC0415 - one kind loads not the others
        from winnow.analytics.stats.terminal import report_text  # noqa: PLC0415

        return report_text(StatisticsReport(answer))
    if answer["kind"] == "fit":
        from winnow.analytics.fit.fitted_model import FittedModel  # noqa: PLC0415

        return FittedModel(answer).rendered()
    if answer["kind"] == "trees":
        from winnow.analytics.trees.boosted_trees import BoostedTrees  # noqa: PLC0415

        return BoostedTrees(answer).rendered()
    if answer["kind"] == "truth":
        from winnow.analytics.truth.truth_report import TruthReport  # noqa: PLC0415
        from winnow.analytics.truth.truth_terminal import truth_text  # noqa: PLC0415

        return truth_text(TruthReport(answer))
    from rich.console import Group  # noqa: PLC0415

    from winnow.terminal_tables import plain_text  # noqa: PLC0415

    if answer["kind"] == "query":
        from winnow.analytics.sql.answer_table import answer_table  # noqa: PLC0415
        from winnow.analytics.sql.query_answer import QueryAnswer  # noqa: PLC0415

        told = QueryAnswer(answer)
        return Group(plain_text(answer["sql"]), answer_table(told), *(plain_text(line) for line in told.notes()))
    return Group(*(plain_text(f"{name}: {value}") for name, value in answer.items()))


@answer_errors()
def write_answer_page(answer: Answer, path: Path) -> Path:
    """Write the page of an answer: one file that opens offline."""
    from winnow.report.html_page import page  # noqa: PLC0415 - Plotly takes a while to import

    text = page(*answer_parts(answer))
    with one_line_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, text)
    return path


@answer_errors()
def answer_parts(answer: Answer) -> tuple[str, str, str]:
    """The title of an answer's page, the line below it, and its sections."""
    from winnow.report.markup import section  # noqa: PLC0415

    if answer["kind"] == "statistics":
        from winnow.analytics.stats.page import statistics_parts  # noqa: PLC0415
        from winnow.analytics.stats.report import StatisticsReport  # noqa: PLC0415

        return statistics_parts(StatisticsReport(answer))
    if answer["kind"] == "truth":
        from winnow.analytics.truth.truth_page import truth_parts  # noqa: PLC0415
        from winnow.analytics.truth.truth_report import TruthReport  # noqa: PLC0415

        return truth_parts(TruthReport(answer))
    if answer["kind"] == "trees":
        from winnow.analytics.trees.boosted_trees import BoostedTrees  # noqa: PLC0415
        from winnow.analytics.trees.trees_page import trees_parts  # noqa: PLC0415

        return trees_parts(BoostedTrees(answer))
    if answer["kind"] == "fit":
        from winnow.analytics.fit.fit_page import fit_parts  # noqa: PLC0415
        from winnow.analytics.fit.fitted_model import FittedModel  # noqa: PLC0415

        return fit_parts(FittedModel(answer))
    if answer["kind"] == "query":
        from winnow.analytics.sql.query_answer import QueryAnswer  # noqa: PLC0415
        from winnow.analytics.sql.query_page import query_parts  # noqa: PLC0415

        return query_parts(QueryAnswer(answer))
    title = f"{answer['kind'].capitalize()} of {answer['table']}"
    return title, "", section("Answer", f"<pre>{escape(_plain(answer))}</pre>")


def _plain(answer: Answer) -> str:
    from rich.console import Console  # noqa: PLC0415

    console = Console(width=PAGE_COLUMNS, file=StringIO(), record=True, force_jupyter=False)
    console.print(render_answer(answer))
    return console.export_text()
