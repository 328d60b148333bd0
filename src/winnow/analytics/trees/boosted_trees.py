"""Boosted trees for people: an XGBoost booster that predicts, what its columns are worth, and how it learnt."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.given_rows import columns_of, level_text
from winnow.analytics.question_run_folder import read_owner_files
from winnow.analytics.trees.booster_json import booster_text
from winnow.analytics.trees.vertical_parts import PART_FILE, joined_model, with_parts
from winnow.core import ConfigError, DataError, suggest
from winnow.core.installed_package import install_command
from winnow.core.join_names import counted
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.report.number_format import number_text
from winnow.runs import file_names
from winnow.runs.atomic_write import one_line_errors

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.console import RenderableType
    from xgboost import Booster

MODEL_FILES = (".json", ".ubj")
SHOWN = 20
"""Columns that a terminal or a notebook shows."""


def require_xgboost() -> None:
    if find_spec("xgboost") is None:
        raise ConfigError(f"xgboost is not installed: {install_command('trees')}")


class BoostedTrees:
    """What `winnow.trees` gives: `model`, an XGBoost booster, `importance`, `history`, `predict(rows)` and `save`."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer

    @cached_property
    def model(self) -> "Booster":
        """It takes the columns in the order of `columns`, of categories the place in their list of values."""
        require_xgboost()
        self._require_model()
        import xgboost  # noqa: PLC0415 - the extra `trees`

        booster = xgboost.Booster()
        booster.load_model(bytearray(booster_text(self.answer).encode()))
        return booster

    def _require_model(self) -> None:
        if "trees" not in self.answer:
            raise ConfigError(
                f"{self.answer['labels']} and {self.answer['features']} keep a part each of these trees "
                f"({PART_FILE} among their results); with both, winnow.load_trees(run, parts=[…]) has the model"
            )

    @property
    def columns(self) -> list[str]:
        return [column["name"] for column in self.answer["columns"]]

    @property
    def classes(self) -> list[str]:
        """None of a number."""
        return list(self.answer["classes"])

    @property
    def importance(self) -> dict[str, float]:
        """The share of all gains that splits of a column make, the largest first."""
        return dict(self.answer["importance"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """The loss before the first round and after each, of the rows trees were grown on and of those held out."""
        return [{"round": number, **each} for number, each in enumerate(self.answer["curve"])]

    def cells(self, rows: Any) -> NDArray[np.float32]:
        """Rows of the data as the booster takes them, of a data frame, a mapping of columns, or a list of records."""
        given = columns_of(rows)
        if absent := [name for name in self.columns if name not in given]:
            raise DataError(f"the rows have no column '{absent[0]}'")
        return np.stack([_cells(column, given[column["name"]]) for column in self.answer["columns"]], axis=1)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Of two classes the probability of the second; of several that of each; else the number."""
        require_xgboost()
        import xgboost  # noqa: PLC0415

        cells = self.cells(rows)
        predicted: NDArray[Any] = self.model.predict(xgboost.DMatrix(cells, feature_names=self.columns))
        return predicted

    def save(self, path: str | Path) -> None:
        """As a model of XGBoost's: .json or .ubj."""
        if Path(path).suffix.lower() not in MODEL_FILES:
            raise ConfigError(f"{path}: XGBoost writes models as {' or '.join(MODEL_FILES)}")
        with one_line_errors(Path(path)):
            Path(path).write_bytes(self.model.save_raw(Path(path).suffix.lower()[1:]))

    def plot(self, what: str = "curve") -> "go.Figure":
        """The learning "curve", or the "importance" of columns."""
        from winnow.analytics.trees.trees_page import curve_figure, importance_figure  # noqa: PLC0415 - Plotly is slow
        from winnow.report.notebook_plots import for_notebook  # noqa: PLC0415

        figures = {"curve": curve_figure, "importance": importance_figure}
        if what not in figures:
            raise ConfigError(f"plot: {what!r} is unknown; {suggest(what, figures)}")
        return for_notebook(figures[what](self))

    def notes(self) -> list[str]:
        """In sentences."""
        answer = self.answer
        rows, owners = counted(answer["rows"], "row"), counted(len(answer["owners"]), "owner")
        losses = [f"{answer['metric']} {number_text(self.history[answer['rounds']]['train'])}"]
        if (held := self.history[answer["rounds"]]["holdout"]) is not None:
            losses.append(f"of rows held out {number_text(held)}")
        whose = f"of {owners}"
        if "vertical" in answer:
            both = f"{answer['labels']} and {answer['features']}"
            whose = f"of {answer['common']:,} that {both} have in common by {answer['key']}"
        lines = [f"{counted(answer['rounds'], 'round')} on {rows} {whose}, {', '.join(losses)}"]
        if answer["grown"] > answer["rounds"]:
            lines.append(
                f"{counted(answer['grown'] - answer['rounds'], 'further round')} did not help, and was left out"
            )
        if answer["left_out"]:
            lines.append(f"Columns without bounds or values, not used: {', '.join(answer['left_out'])}")
        return lines

    def rendered(self) -> "RenderableType":
        from rich.console import Group  # noqa: PLC0415

        from winnow.terminal_tables import plain_text, table  # noqa: PLC0415

        shown = table(["column", "share of gain"], self._shares())
        return Group(plain_text(f"Trees that predict {self.answer['target']}"), shown, *map(plain_text, self.notes()))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from winnow.report.markup import bullet_list, html_table  # noqa: PLC0415

        title = f"Trees that predict {self.answer['target']}"
        return html_table(title, ["column", "share of gain"], self._shares()) + bullet_list(self.notes())

    def _shares(self) -> list[list[str]]:
        return [[name, f"{share:.1%}"] for name, share in list(self.importance.items())[:SHOWN]]

    def __repr__(self) -> str:
        return f"trees that predict {self.answer['target']}: {self.notes()[0]}"


def _cells(column: Mapping[str, Any], cells: Sequence[Any]) -> NDArray[np.float32]:
    """Numbers; of categories their places, and nothing for a value that is not listed."""
    if not column["values"]:
        return np.asarray(cells, dtype=np.float32)
    place_of = {value: place for place, value in enumerate(column["values"])}
    return np.array([place_of.get(level_text(cell), np.nan) for cell in cells], np.float32)


def read_trees(path: Path, parts: Sequence[Path] = ()) -> BoostedTrees:
    """From the answer in a run folder; with `parts`, those of the owners of labels and of features."""
    file = path / file_names.ANSWER if path.is_dir() else path
    try:
        answer = from_json(file.read_bytes(), dict[str, Any])
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    except UnreadableError:
        raise DataError(f"{file} is not an answer of winnow trees") from None
    if answer.get("kind") != "trees" or not {"trees", "vertical"} & answer.keys():
        raise DataError(f"{file} is not an answer of winnow trees")
    if parts:
        return BoostedTrees({**answer, **joined_model(*_two_texts(parts))})
    return BoostedTrees(with_parts(answer, read_owner_files(file.parent / file_names.OWNER_FILES)))


def _two_texts(parts: Sequence[Path]) -> tuple[str, str]:
    if len(parts) != 2:
        raise ConfigError(f"parts: vertical trees have two, of labels and of features; here they are {len(parts)}")
    labels, features = parts
    with one_line_errors(labels):
        text = labels.read_text(encoding="utf-8")
    with one_line_errors(features):
        return text, features.read_text(encoding="utf-8")
