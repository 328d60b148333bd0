"""In which settings experiments differ, side by side."""

from collections.abc import Sequence

from winnow.report.run_groups import NOT_SET, experiment_settings, setting_text
from winnow.report.tables import Cells
from winnow.runs import RunView

MAX_COLUMNS, MAX_SETTINGS = 24, 200


def differing_settings(views: Sequence[RunView]) -> tuple[Cells, list[Cells]]:
    """A header and a line for each setting that is not the same everywhere; a column for each way to set them."""
    ways: dict[str, tuple[RunView, dict[str, str]]] = {}
    for view in views:
        told = {"algorithm": view.label.algorithm} | {
            key: setting_text(value) for key, value in experiment_settings(view).items()
        }
        ways.setdefault(repr(sorted(told.items())), (view, told))
    shown = list(ways.values())[:MAX_COLUMNS]
    keys = dict.fromkeys(key for _, told in shown for key in told)
    rows = [(key, *(told.get(key, NOT_SET) for _, told in shown)) for key in keys]
    different = [row for row in rows if len(set(row[1:])) > 1]
    return ("Setting", *(_name(view) for view, _ in shown)), different[:MAX_SETTINGS]


def _name(view: RunView) -> str:
    return view.label.algorithm if view.path is None else view.path.name
