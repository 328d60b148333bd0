"""A round of local training for a whole cohort."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from winnow.core import derive
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan, phase_stream_name, plan_batches
from winnow.learn.stack.client_tensors import Indices, TensorData
from winnow.learn.stack.execution import Batch, Execution, GradientFunction, GradientRule, min_batch_size
from winnow.learn.stack.frozen_prefix import find_trainable_suffix
from winnow.learn.stack.local_start import GradientCorrection, LocalStart
from winnow.learn.stack.model_states import ModelState, take_clients


@dataclass(frozen=True, kw_only=True)
class CohortTrainingResult:
    """What K clients made of the model they were given, in the order in which they were asked.

    The loss is a client's mean over the samples of its last epoch, or over all of its steps; NaN if it had no batch.
    """

    states: ModelState  # stacked, [K, ...]
    loss: Tensor  # [K]
    steps: Tensor  # [K]


def train(
    execution: Execution,
    local_start: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    clients: Indices,
    *,
    round: int,
    seed: int,
    phase: int = 0,
    gradient_rule: GradientRule | None = None,
) -> CohortTrainingResult:
    """Train every client from where it departs; rounds count from 1. Trainings of one round differ in their `phase`.

    A model with batch normalisation skips batches of a single sample (a client's only one, or the last of an epoch),
    for which there is no variance. Everything but dropout's noise is independent of who else is in the cohort. With a
    `gradient_rule` steps go that way instead of along the gradient; its further batches are those of the next phases.
    Of a model whose first layers stand still only the others are trained, on what the first make of the samples.
    """
    suffix = find_trainable_suffix(execution, local_start, data) if gradient_rule is None else None
    if suffix is not None:
        begin, features = suffix.local_start(local_start), suffix.prefix_features(local_start, data, clients)
        done = _train(
            suffix.execution, begin, local, features, clients, round=round, seed=seed, phase=phase, gradient_rule=None
        )
        return replace(done, states=suffix.full_states(local_start, done.states, len(clients)))
    return _train(
        execution, local_start, local, data, clients, round=round, seed=seed, phase=phase, gradient_rule=gradient_rule
    )


def _train(
    execution: Execution,
    local_start: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    clients: Indices,
    *,
    round: int,
    seed: int,
    phase: int,
    gradient_rule: GradientRule | None,
) -> CohortTrainingResult:
    smallest = min_batch_size(execution.module)
    plan, *further = (
        plan_batches(data, clients, local, round=round, seed=seed, smallest=smallest, phase=each)
        for each in range(phase, phase + (gradient_rule.batches if gradient_rule else 1))
    )
    with _own_noise(derive(seed, "dropout", round, *clients[:1].tolist(), *phase_stream_name(phase)), data.x.device):
        begin = local_start.ordered(torch.from_numpy(plan.order).to(data.x.device))
        rate = local.rate(round)
        done = execution.run_plan(begin, local, data, plan, rate=rate) if gradient_rule is None else None
        states, losses = done or _step_by_step(
            execution,
            begin,
            local,
            data,
            plan,
            rate=rate,
            gradient_rule=gradient_rule,
            further=[other.rows for other in further],
        )
    back = torch.from_numpy(np.argsort(plan.order)).to(data.x.device)
    layout = execution.layout
    trained = {name: states[layout.aliases.get(name, name)] for name in layout.names}
    return CohortTrainingResult(
        states=take_clients(trained, back),
        loss=_mean_loss(losses, plan).index_select(0, back),
        steps=torch.from_numpy((plan.sizes > 0).sum(0)).to(data.x.device).index_select(0, back),
    )


@torch.no_grad()
def _step_by_step(
    execution: Execution,
    local_start: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    plan: BatchPlan,
    *,
    rate: float,
    gradient_rule: GradientRule | None,
    further: Sequence[Indices],
) -> tuple[ModelState, Tensor]:
    """The clients' states after all steps, and the losses of all samples [S, K, B].

    `further` are the rows of a gradient rule's other batches, which are as large as the plan's own.
    """
    states = local_start.stacked(len(plan.order))
    trained = [states[name] for name in execution.layout.trained]
    carried = [states[name] for name in execution.layout.carried]
    places = local_start.trainable_indices(execution.layout.trained)
    trainable = [trained[place] for place in places]
    groups = [trained, carried, trainable, *local.initial_state(trainable)]
    correction = GradientCorrection.of(local_start, execution.layout.trained, len(plan.order))
    rows = torch.from_numpy(np.stack([plan.rows, *further], axis=1)).to(data.x.device)
    weights = torch.from_numpy(plan.weights()).to(trained[0])
    losses = torch.zeros_like(weights)
    alone = execution.name == "loop"
    bound = -1
    for active, width, steps in plan.segments():
        if active != bound:
            parameters, buffers, moved, *slots = ([tensor[:active] for tensor in group] for group in groups)
            cohort, anywhere = execution.bind_cohort(parameters, buffers), _anywhere(execution, buffers)
            added = correction and correction.leading_clients(active)
            if alone:
                moved, slots, added = _apart(moved), [_apart(slot) for slot in slots], added and added.per_client()
            bound = active
        along, part = slice(steps.start, steps.stop), (slice(active), slice(width))
        full = (plan.sizes[along, :active] == width).all(1)
        each = zip(
            steps, rows[along, :, *part].flatten(2), weights[along, *part], losses[along, *part], full, strict=True
        )
        for step, drawn, weight, kept, is_full in each:
            sizes = plan.sizes[step, :active]
            batches = [Batch(*data.samples(chosen), weight, sizes, bool(is_full)) for chosen in drawn]
            gradients, found = (
                gradient_rule(anywhere, parameters, batches) if gradient_rule else cohort.gradients(batches[0])
            )
            kept.copy_(found)
            slopes = [gradients[place] for place in places]
            if alone:
                slopes = _apart(slopes)
            if added:
                added.add_to(slopes, moved)
            local.step(moved, slopes, slots, number=step + 1, rate=rate)
    return states, losses


def _apart(stacked: list[Tensor]) -> list[Tensor]:
    """Every client's own tensors. What stands last in a tensor is rounded otherwise (in scalar instructions, without
    fused products), so that where clients are trained one by one their steps are taken one by one, too.
    """
    return [own for tensor in stacked for own in tensor]


def _anywhere(execution: Execution, carried: list[Tensor]) -> GradientFunction:
    return lambda parameters, batch: execution.bind_cohort(parameters, carried).gradients(batch)


def _mean_loss(losses: Tensor, plan: BatchPlan) -> Tensor:
    """Added up one after another, so that the padding which others in the cohort bring changes nothing."""
    inside = np.arange(plan.rows.shape[2]) < plan.sizes[:, :, None]
    counted = torch.from_numpy(inside & plan.reported[:, :, None]).to(losses.device)
    own = torch.where(counted, losses, 0).transpose(0, 1).flatten(1).double()
    total = functional.pad(own, (1, 0)).cumsum(1)[:, -1]
    return (total / counted.sum((0, 2))).to(losses.dtype)


@contextmanager
def _own_noise(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout draws from a stream of its own and leaves torch's generator as it was."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed % 2**63)
        yield
