"""What each owner of a plan trains on: parts given for a simulation, or a site's own file."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from winnow.core import ConfigError
from winnow.experiment.run_workflow import PartyContext
from winnow.learn.metrics import METRICS, Metric, own_metric
from winnow.vertical.keyed_rows import KeyedRows, OwnerColumns, keyed_rows
from winnow.vertical.split_plan import SplitPlan


def owner_columns(plan: SplitPlan, key: str, target: str) -> dict[str, OwnerColumns]:
    """By owner: which columns of its part are key, labels and features."""
    return {
        name: OwnerColumns(key=key, target=target if name == plan.labels else None, has_features=name in plan.bottoms)
        for name in plan.owners
    }


def simulated_parts(
    plan: SplitPlan, parts: Mapping[str, Any] | None, columns: Mapping[str, OwnerColumns]
) -> dict[str, KeyedRows]:
    given = parts or {}
    if missing := [name for name in plan.owners if name not in given]:
        raise ConfigError(f"parts: nothing is given for {missing[0]}; pass what each owner holds")
    if unknown := [name for name in given if name not in plan.owners]:
        raise ConfigError(f"parts: {unknown[0]} has no module; owners are {', '.join(plan.owners)}")
    return {name: keyed_rows(given[name], columns[name], name) for name in plan.owners}


def rows_at_site(
    columns: Mapping[str, OwnerColumns], party: PartyContext, data: str
) -> tuple[Callable[[int], KeyedRows], int]:
    """The rows of an owner, which this site is by its name, and how many its file has."""
    if "file" not in party.section:
        raise ConfigError(f"data.{data}: split and transfer learning read a file; set file")
    file = party.section["file"]
    key = party.section.get("key", next(iter(columns.values())).key)

    @cache
    def rows(client: int) -> KeyedRows:
        return keyed_rows(file, _as_the_site_says(columns[party.site_of(client)], party.section), f"data.{data}")

    return rows, len(keyed_rows(file, OwnerColumns(key=key, has_features=False), f"data.{data}"))


def _as_the_site_says(columns: OwnerColumns, section: Mapping[str, Any]) -> OwnerColumns:
    """A site names its own columns; and those that it names are all that it gives."""
    features, targets = section.get("features"), section.get("targets", columns.target)
    return OwnerColumns(
        key=section.get("key", columns.key),
        target=None if columns.target is None else targets if isinstance(targets, str) else targets[0],
        features=None if features is None else (features,) if isinstance(features, str) else tuple(features),
        has_features=columns.has_features,
    )


def named_metric(metric: str | Metric) -> Metric:
    if not isinstance(metric, str):
        return own_metric(metric)
    if metric not in METRICS:
        raise ConfigError(f"unknown metric '{metric}'; choose one of {', '.join(METRICS)}")
    return METRICS[metric]
