"""Which runs belong together: those that differ in nothing but the seed. A group is named by what sets it apart."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from winnow.report.plot_data import RunPlotData, read_plot_data
from winnow.runs import RunView

NON_EXPERIMENT_KEYS = {"name", "description", "seed", "algorithm", "base"}
ENGINE, PRECISION = "engine.", "engine.precision"
"""How a run is computed does not make it another experiment, its precision apart."""

MOST_DIFFERENCES = 3
LONGEST_NAME = 64
NOT_SET = "none"

FlatConfig: TypeAlias = Mapping[str, Any]
"""A configuration by key paths, such as `select.alpha`."""


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Runs of one experiment, by seed."""

    algorithm: str
    settings: FlatConfig
    runs: dict[int, tuple[RunView, RunPlotData]] = field(default_factory=dict)

    def contains(self, view: RunView, run: RunPlotData) -> bool:
        """Whether this very run, or a copy of it, is here already."""
        known = self.runs.get(view.label.seed)
        return known is not None and (_same_folder(known[0], view) or _same_points(known[1], run))


def group_by_experiment(views: Sequence[RunView]) -> dict[str, list[RunPlotData]]:
    """The runs of each experiment by its name here, read from their logs."""
    return group_plot_data([(view, read_plot_data(view)) for view in views])


def group_plot_data(runs: Sequence[tuple[RunView, RunPlotData]]) -> dict[str, list[RunPlotData]]:
    """The runs of each experiment by its name here, in order of appearance; a run that is given twice counts once.

    Runs with the same settings and the same seed that went differently differ in something that a configuration does
    not tell (an object or a code that Python passed): they are never averaged as if they were seeds.
    """
    groups: list[_Group] = []
    for view, run in runs:
        settings = experiment_settings(view) if len(runs) > 1 else {}
        alike = [g for g in groups if (g.algorithm, g.settings) == (view.label.algorithm, settings)]
        if any(group.contains(view, run) for group in alike):
            continue
        group = next((group for group in alike if view.label.seed not in group.runs), None)
        if group is None:
            group = _Group(algorithm=view.label.algorithm, settings=settings)
            groups.append(group)
        group.runs[view.label.seed] = (view, run)
    return {name: [run for _, run in group.runs.values()] for name, group in zip(_names(groups), groups, strict=True)}


def _same_points(one: RunPlotData, other: RunPlotData) -> bool:
    """Compare the courses as text: the loss of an untrained model is NaN, which never equals itself."""
    return repr(one.points) == repr(other.points)


def _same_folder(one: RunView, other: RunView) -> bool:
    return one.path is not None and other.path is not None and one.path.resolve() == other.path.resolve()


def experiment_settings(view: RunView) -> FlatConfig:
    """What makes a run the experiment that it is, by key paths."""
    return {
        key: value
        for key, value in _flat(view.config)
        if key not in NON_EXPERIMENT_KEYS and (key == PRECISION or not key.startswith(ENGINE))
    }


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _names(groups: Sequence[_Group]) -> list[str]:
    """The first group of an algorithm has its name alone, the others add what they do differently."""
    names: list[str] = []
    for group in groups:
        rivals = [other for other in groups if other.algorithm == group.algorithm]
        names.append(_unique(group.algorithm if group is rivals[0] else _name(group, rivals), names))
    return names


def _name(group: _Group, rivals: Sequence[_Group]) -> str:
    different = _differences(group.settings, [other.settings for other in rivals])
    name = ", ".join([group.algorithm, *(f"{key}={setting_text(value)}" for key, value in different.items())])
    if 0 < len(different) <= MOST_DIFFERENCES and len(name) <= LONGEST_NAME:
        return name
    view, _ = next(iter(group.runs.values()))
    return group.algorithm if view.path is None else f"{group.algorithm}, {view.path.resolve().name}"


def _differences(own: FlatConfig, all_settings: Sequence[FlatConfig]) -> FlatConfig:
    """What is set otherwise than in the first; keys that come and go with a section's `name` only if they must."""
    first = all_settings[0]
    different: dict[str, Any] = {}
    for key in [*own, *(key for key in first if key not in own)]:
        section = key.rpartition(".")[0]
        renamed = own.get(f"{section}.name") != first.get(f"{section}.name")
        values = [settings[key] for settings in all_settings if key in settings]
        told_by_name = renamed and (key not in own or all(value == values[0] for value in values))
        told_by_another = key not in own and any(other.startswith(f"{section}.") for other in different)
        if own.get(key) != first.get(key) and not told_by_name and not told_by_another:
            different[key] = own.get(key)
    return different


def setting_text(value: Any) -> str:
    if value is None:
        return NOT_SET
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _unique(name: str, taken: Sequence[str]) -> str:
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 2))
    return name if name not in taken else next(each for each in numbered if each not in taken)
