"""`winnow.split`: one model over columns that different owners have of the same rows."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from winnow.experiment.execution_context import current_context
from winnow.experiment.run_workflow import PartyContext
from winnow.learn.metrics import Metric
from winnow.learn.stack.per_sample_losses import as_loss
from winnow.vertical.cut_protection import CutProtection
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.owners_data import named_metric, owner_columns, simulated_parts
from winnow.vertical.run_at_sites import run_at_sites
from winnow.vertical.simulate_split import simulate_split
from winnow.vertical.split_plan import LossFunction, SplitPlan
from winnow.vertical.split_result import SplitResult, leave_modules
from winnow.vertical.split_site import SplitSite
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
        metric=named_metric(metric),
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
    columns = owner_columns(plan, key, target)
    context = current_context()
    if context is None:
        held = simulated_parts(plan, parts, columns)
        return simulate_split(plan, held, out=None if out is None else Path(out), resume=resume, progress=progress)
    workflow = SplitLearning(plan)

    def make_site(rows: Callable[[int], KeyedRows], party: PartyContext) -> SplitSite:
        return SplitSite(plan, rows, party.site_of, party.randomness, party.release, leave_modules)

    happened = run_at_sites(context, workflow, make_site, columns, data, seed)
    return SplitResult.of(plan, workflow, happened)
