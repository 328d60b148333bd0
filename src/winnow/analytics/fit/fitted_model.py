"""A fitted model for people: its tables, and a scikit-learn object that predicts from rows of the data."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console, Group, RenderableType

from winnow.core import ConfigError, DataError
from winnow.core.join_names import counted
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.report.markup import bullet_list, html_table
from winnow.report.number_format import number_text
from winnow.runs import file_names
from winnow.runs.atomic_write import write_text_atomically
from winnow.terminal_tables import plain_text, table

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from sklearn.pipeline import Pipeline

REGRESSIONS = ("linear", "ridge", "logistic", "poisson", "gamma")
SUMMARY_WIDTH = 100

TableCells: TypeAlias = tuple[list[str], list[list[str]]]
"""Header and rows."""


class FittedModel:
    """What `winnow.fit` gives: `coef`, `summary()`, `predict(rows)`, `estimator`, and `answer`, all that was opened."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer

    @property
    def rows(self) -> int:
        """Complete rows at all owners together."""
        return int(self.answer["rows"])

    @property
    def coef(self) -> dict[str, float]:
        """Estimates by term, in the units of the data."""
        if self.answer["model"] not in REGRESSIONS:
            raise ConfigError(f"{self.answer['model']} has no coefficients by term; use .estimator or .answer")
        return {each["term"]: each["estimate"] for each in self.answer["terms"]}

    @cached_property
    def estimator(self) -> "Pipeline":
        """A scikit-learn pipeline; its first step takes rows of the data."""
        from winnow.analytics.fit.sklearn_pipelines import estimator_of  # noqa: PLC0415 - a table alone needs no scikit-learn

        return estimator_of(self.answer)

    def predict(self, rows: Any) -> Any:
        """For a data frame, a mapping of columns, or a list of records; of pca the components' scores."""
        last = self.estimator.transform if self.answer["model"] == "pca" else self.estimator.predict
        return last(rows)

    def save(self, path: str | Path) -> None:
        """As a JSON file that `winnow.load_fit` reads."""
        text = json.dumps(self.answer, indent=2, ensure_ascii=False, allow_nan=False)
        write_text_atomically(Path(path), text + "\n")

    def summary(self) -> str:
        """The table as text."""
        text = StringIO()
        Console(file=text, width=SUMMARY_WIDTH, color_system=None, force_jupyter=False).print(self.rendered())
        return text.getvalue()

    def rendered(self) -> RenderableType:
        """For a terminal."""
        cells = fit_cells(self.answer)
        lines = [plain_text(line) for line in self.lines()]
        return Group(*([] if cells is None else [table(*cells)]), *lines)

    def lines(self) -> list[str]:
        """What was fitted to what, and what was left out."""
        answer = self.answer
        fitted = f"{answer['model']}: {counted(self.rows, 'complete row')} of {counted(len(answer['owners']), 'owner')}"
        steps = f", {counted(answer['steps'], 'step')}" if "steps" in answer else ""
        lines = [fitted + steps + "".join(f", {name} {number_text(value)}" for name, value in _quality(answer))]
        if answer["pooled"]:
            lines.append(
                f"Levels with fewer than {answer['minimum']} rows, counted as one: {', '.join(answer['pooled'])}"
            )
        if answer["dropped"]:
            lines.append(f"Products with fewer than {answer['minimum']} rows, left out: {', '.join(answer['dropped'])}")
        if answer["rare"]:
            told = f"{answer['rare']} combinations of values that fewer than {answer['minimum']} rows have"
            lines.append(f"Rows left out: those with one of {told}")
        if answer.get("hidden"):
            lines.append(f"{counted(answer['hidden'], 'count')} below {answer['minimum']} rows not told")
        return lines

    def __repr__(self) -> str:
        return self.summary()

    def plot(self) -> "go.Figure":
        """The estimates with their 95 % intervals; of pca the components' shares of the variance."""
        from winnow.analytics.fit.fit_chart import fit_figure  # noqa: PLC0415 - Plotly takes a while to import

        return fit_figure(self.answer)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        cells = fit_cells(self.answer)
        shown = "" if cells is None else html_table(f"{self.answer['model']} fit", *cells)
        return shown + bullet_list(self.lines())


def read_fit(path: Path) -> FittedModel:
    """A fit from a file, or from the answer in a run folder."""
    file = path / file_names.ANSWER if path.is_dir() else path
    try:
        answer = from_json(file.read_bytes(), dict[str, Any])
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except UnreadableError:
        raise DataError(f"{file} is not a fit that winnow fit wrote") from None
    if answer.get("kind") != "fit" or "design" not in answer:
        raise DataError(f"{file} is not a fit that winnow fit wrote")
    return FittedModel(answer)


def _quality(answer: Mapping[str, Any]) -> list[tuple[str, float]]:
    names = {
        "r2": "R²",
        "residual_sd": "residual sd",
        "deviance": "deviance",
        "dispersion": "dispersion",
        "inertia": "inertia",
    }
    return [(words, answer[key]) for key, words in names.items() if answer.get(key) is not None]


def fit_cells(answer: Mapping[str, Any]) -> TableCells | None:
    """Header and rows of the table that shows a fit, for those that have one."""
    show = {"pca": _components, "kmeans": _clusters}.get(answer["model"])
    return show(answer) if show else _terms(answer) if "terms" in answer else None


def _terms(answer: Mapping[str, Any]) -> TableCells:
    statistic = answer["statistic"]
    keys = ("estimate", "std_error", statistic)
    rows = [[each["term"], *(number_text(each[key]) for key in keys), _p_text(each["p"])] for each in answer["terms"]]
    return ["term", "estimate", "std. error", statistic, "p"], rows


def _p_text(value: float | None) -> str:
    return "" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _components(answer: Mapping[str, Any]) -> TableCells:
    count = len(answer["components"])
    header = ["column", *(f"component {place + 1}" for place in range(count))]
    shares = ["explained", *(f"{share:.1%}" for share in answer["explained_share"])]
    return header, [*_by_column(answer["columns"], answer["components"]), shares]


def _clusters(answer: Mapping[str, Any]) -> TableCells:
    header = ["column", *(f"cluster {place + 1}" for place in range(len(answer["centres"])))]
    sizes = ["rows", *(f"{size:,}" for size in answer["sizes"])]
    return header, [*_by_column(answer["columns"], answer["centres"]), sizes]


def _by_column(columns: Sequence[str], vectors: Sequence[Sequence[float]]) -> list[list[str]]:
    return [[name, *(number_text(vector[place]) for vector in vectors)] for place, name in enumerate(columns)]
