"""`winnow.split`: one model over columns that different owners have of the same rows."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torch import nn

from winnow.core import ConfigError, Handler
from winnow.data import DataSettings
from winnow.experiment.execution_context import current_context
from winnow.experiment.run_workflow import PartyContext, WorkflowSpec
from winnow.learn.metrics import METRICS, Metric, own_metric
from winnow.learn.stack.per_sample_losses import as_loss
from winnow.vertical.cut_protection import CutProtection
from winnow.vertical.keyed_rows import KeyedRows, OwnerColumns, keyed_rows
from winnow.vertical.simulate_split import simulate_split
from winnow.vertical.split_plan import LossFunction, SplitPlan
from winnow.vertical.split_result import SplitResult, leave_modules
from winnow.vertical.split_site import VOLATILE, SplitSite
from winnow.vertical.split_workflow import SplitLearning


def split(
    data: str = "parts",
    *,
    bottoms: Mapping[str, nn.Module],
    top: nn.Module,
    labels: str,
    target: str = "y",
    key: str = "key",
    parts: Mapping[str, Any] | None = None,
    middle: nn.Module | None = None,
    loss: LossFunction | str | None = None,
    metric: str | Metric = "accuracy",
    optimiser: Literal["sgd", "adam"] = "sgd",
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    epochs: int = 5,
    batch_size: int = 64,
    test: float = 0.1,
    pipeline: Literal[1, 2] = 1,
    minimum: int = 100,
    clip: float | None = None,
    noise: float = 0.0,
    norms: Literal["as they are", "max-norm"] = "as they are",
    delta: float = 1e-5,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> SplitResult:
    """Train a model whose parts lie with different owners, over the rows whose keys all of them have.

    `bottoms` has the module of each owner of features, by the owner's name. What they make of a batch goes to the owner
    of the `labels` (column `target`), whose `top` takes one input a bottom, in this order. With `middle` the server
    trains a module between them, and `top` takes its output (the U shape).

    `parts` has what each owner holds, for a simulation: a frame or file with the column `key`, or arrays (keys, x),
    (keys, y) or (keys, x, y). In a submitted program every site uses its own data called `data` instead, and owners are
    sites by their names. `clip` bounds the gradient of each sample that leaves the labels' owner, `noise` adds noise in
    multiples of it and accounts for it, and `norms="max-norm"` hides norms.
    """
    plan = SplitPlan(
        bottoms=dict(bottoms),
        top=top,
        labels=labels,
        middle=middle,
        loss=None if loss is None else as_loss(loss),
        metric=_metric(metric),
        optimiser=optimiser,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        epochs=epochs,
        batch_size=batch_size,
        test=test,
        pipeline=pipeline,
        minimum=minimum,
        protection=CutProtection(clip=clip, noise=noise, norms=norms, delta=delta),
        seed=seed,
    )
    columns = {name: _columns(plan, name, key, target) for name in plan.owners}
    context = current_context()
    if context is None:
        held = _simulated_parts(plan, parts, columns)
        return simulate_split(plan, held, out=None if out is None else Path(out), resume=resume, progress=progress)
    workflow = SplitLearning(plan)
    spec = WorkflowSpec(
        workflow=workflow,
        handlers={},
        data=DataSettings(name=data),
        seed=seed,
        volatile=VOLATILE,
        party_handlers=lambda party: _at_a_site(plan, columns, party, data),
    )
    return SplitResult.of(plan, workflow, context.run_workflow(spec, lambda event: None))


def _at_a_site(
    plan: SplitPlan, columns: Mapping[str, OwnerColumns], party: PartyContext, data: str
) -> tuple[Mapping[str, Handler[Any]], int]:
    """The handlers of a site, which owner it is by its name, and how many rows its file has."""
    if "file" not in party.section:
        raise ConfigError(f"data.{data}: split learning reads a file; set file")
    file, key = party.section["file"], party.section.get("key", columns[plan.labels].key)

    @cache
    def rows(client: int) -> KeyedRows:
        return keyed_rows(file, _as_the_site_says(columns[party.site_of(client)], party.section), f"data.{data}")

    site = SplitSite(plan, rows, party.site_of, party.randomness, party.release, leave_modules)
    return site.handlers(), len(keyed_rows(file, OwnerColumns(key=key, has_features=False), f"data.{data}"))


def _as_the_site_says(columns: OwnerColumns, section: Mapping[str, Any]) -> OwnerColumns:
    """A site names its own columns; and those that it names are all that it gives."""
    features, targets = section.get("features"), section.get("targets", columns.target)
    return OwnerColumns(
        key=section.get("key", columns.key),
        target=None if columns.target is None else targets if isinstance(targets, str) else targets[0],
        features=None if features is None else (features,) if isinstance(features, str) else tuple(features),
        has_features=columns.has_features,
    )


def _metric(metric: str | Metric) -> Metric:
    if not isinstance(metric, str):
        return own_metric(metric)
    if metric not in METRICS:
        raise ConfigError(f"unknown metric '{metric}'; choose one of {', '.join(METRICS)}")
    return METRICS[metric]


def _columns(plan: SplitPlan, name: str, key: str, target: str) -> OwnerColumns:
    return OwnerColumns(key=key, target=target if name == plan.labels else None, has_features=name in plan.bottoms)


def _simulated_parts(
    plan: SplitPlan, parts: Mapping[str, Any] | None, columns: Mapping[str, OwnerColumns]
) -> dict[str, KeyedRows]:
    given = parts or {}
    if missing := [name for name in plan.owners if name not in given]:
        raise ConfigError(f"parts: nothing is given for {missing[0]}; pass what each owner holds")
    return {name: keyed_rows(given[name], columns[name], name) for name in plan.owners}
