"""`winnow.transfer`: a model for an owner without labels, from another owner with other columns and few common rows."""

from collections.abc import Callable, Mapping
from functools import partial
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
from winnow.vertical.simulate_split import SimulatedSplit
from winnow.vertical.split_plan import LossFunction
from winnow.vertical.split_result import leave_modules
from winnow.vertical.transfer_plan import TransferPlan
from winnow.vertical.transfer_result import TransferResult, leave_received
from winnow.vertical.transfer_site import HEAD_STATE, ReceivedModel, TransferSite, received_model
from winnow.vertical.transfer_workflow import TransferLearning
from winnow.vertical.transferred_head import HeadMessage


def transfer(
    data: str = "parts",
    *,
    encoders: Mapping[str, nn.Module],
    head: nn.Module,
    labels: str,
    target: str = "y",
    key: str = "key",
    parts: Mapping[str, Any] | None = None,
    align: float = 1.0,
    loss: LossFunction | str | None = None,
    metric: str | Metric = "accuracy",
    optimiser: Literal["sgd", "adam"] = "adam",
    learning_rate: float = 0.001,
    momentum: float = 0.0,
    weight_decay: float = 1e-4,
    epochs: int = 30,
    batch_size: int = 32,
    own_batch_size: int = 256,
    test: float = 0.1,
    minimum: int = 100,
    clip: float | None = None,
    noise: float = 0.0,
    norms: Literal["as they are", "max-norm"] = "as they are",
    delta: float = 1e-5,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> TransferResult:
    """Train a model over the columns of an owner that has no labels, with one that has other columns and labels.

    `encoders` has a module of each of the two owners, by name; both give as many numbers a row, which `head` labels.
    The owner of the `labels` (column `target`) trains its encoder and the head on all of its rows. On rows that both
    have by their `key`, the other encoder learns to give what the first one gives (`align`), and what the head labels
    right. In the end the owner without labels has its encoder and the head, and needs nobody to predict.

    `parts` has what each owner holds, for a simulation: a frame or file with the column `key`, or arrays (keys, x),
    and (keys, x, y) for the owner of the labels. In a submitted program every site uses its own data called `data`.
    """
    plan = TransferPlan(
        bottoms=dict(encoders),
        top=head,
        labels=labels,
        align=align,
        loss=None if loss is None else as_loss(loss),
        metric=named_metric(metric),
        optimiser=optimiser,
        learning_rate=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay,
        epochs=epochs,
        batch_size=batch_size,
        own_batch_size=own_batch_size,
        test=test,
        minimum=minimum,
        protection=CutProtection(clip=clip, noise=noise, norms=norms, delta=delta),
        seed=seed,
    )
    columns = owner_columns(plan, key, target)
    context = current_context()
    if context is None:
        held = simulated_parts(plan, parts, columns)
        return _simulated(plan, held, None if out is None else Path(out), resume, progress)
    workflow = TransferLearning(plan)

    def make_site(rows: Callable[[int], KeyedRows], party: PartyContext) -> TransferSite:
        return TransferSite(plan, rows, party.site_of, party.randomness, party.release, leave_modules, leave_received)

    happened = run_at_sites(context, workflow, make_site, columns, data, seed)
    return TransferResult.of(plan, workflow, happened)


def _simulated(
    plan: TransferPlan, parts: Mapping[str, KeyedRows], out: Path | None, resume: bool, progress: bool | None
) -> TransferResult:
    """With both owners in this process."""
    run = SimulatedSplit(plan, parts, TransferLearning(plan), partial(TransferSite, plan))
    view = run.finished(out, resume, progress)
    return TransferResult(
        plan=plan, size=run.workflow.size, view=view, received=_received(plan, parts, run.states()[plan.receiver])
    )


def _received(plan: TransferPlan, parts: Mapping[str, KeyedRows], state: Mapping[str, Any]) -> ReceivedModel:
    """The model of the owner without labels, from what it kept."""
    encoder, head = (
        {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        for prefix in ("bottom.", HEAD_STATE)
    )
    labelled = parts[plan.labels]
    told = HeadMessage(values={}, has_classes=labelled.classes is not None, labels=labelled.labels)
    return received_model(plan, encoder, head, told, parts[plan.receiver])
