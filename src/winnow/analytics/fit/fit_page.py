"""A fitted model as a page: its estimates as a chart and a table, and what was left out."""

from winnow.analytics.fit.design import INTERCEPT
from winnow.analytics.fit.fit_chart import estimates_figure, explained_figure
from winnow.analytics.fit.fitted_model import FittedModel, fit_cells
from winnow.report.markup import bullet_list, figure_html, html_table, section

MAX_TERMS = 100
"""Of more terms, there is the table alone."""


def fit_parts(model: FittedModel) -> tuple[str, str, str]:
    """The page's title, the line below it, and its sections."""
    answer, cells = model.answer, fit_cells(model.answer)
    lead, *notes = model.lines()
    table = "" if cells is None else html_table(f"{answer['model']} fit", *cells)
    pieces = [section("Model", _chart(model), table)] if table else []
    pieces += [section("Notes", bullet_list(notes))] if notes else []
    return f"Fit of {answer['table']}", lead, "".join(pieces)


def _chart(model: FittedModel) -> str:
    answer = model.answer
    if answer["model"] == "pca":
        return figure_html(explained_figure(answer), "The share of the variance that each component explains.")
    slopes = [each for each in answer.get("terms", ()) if each["term"] != INTERCEPT]
    if not 0 < len(slopes) <= MAX_TERMS:
        return ""
    caption = "Each term's estimate, in the units of the data; without the intercept, which has a scale of its own."
    return figure_html(estimates_figure({**answer, "terms": slopes}), caption)
