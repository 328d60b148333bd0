"""A cohort's round in Python: one step of all clients after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.changed_samples import ChangedSamples
from winnow.learn.stack.execution_interface import Batch, Execution, PlanResult
from winnow.learn.stack.flat_client_data import TensorData
from winnow.learn.stack.gradient_rule import GradientRule, NamedDraws, StepContext
from winnow.learn.stack.local_training_start import GradientCorrection, LocalStart, expand_to_clients
from winnow.learn.stack.trainable_state import ModelState, take_clients


class CohortSteps:
    """K clients' tensors, and the optimiser's steps of those that lead. `local_start` has them in the plan's order."""

    def __init__(
        self, execution: Execution, local_start: LocalStart, local: LocalOptimiser, clients: int, rate: float
    ) -> None:
        self._local, self._rate, layout = local, rate, execution.layout
        self.states = local_start.stacked(clients)
        self._trained, self._carried = (
            [self.states[name] for name in names] for names in (layout.trained, layout.carried)
        )
        self._places = local_start.trainable_indices(layout.trained)
        self._trainable = [self._trained[place] for place in self._places]
        names = tuple(layout.trained[place] for place in self._places)
        self.slots = local_start.optimiser_state(local, names, self._trainable)
        self._correction = GradientCorrection.of(local_start, layout.trained, clients)
        self._alone = execution.name == "loop"

    def bind(self, clients: int) -> tuple[list[Tensor], list[Tensor]]:
        """From now on so many leading clients take steps; their parameters and buffers."""
        groups = (self._trained, self._carried, self._trainable, *self.slots)
        parameters, buffers, self._moved, *self._moved_slots = ([t[:clients] for t in group] for group in groups)
        self._added = self._correction and self._correction.leading_clients(clients)
        if self._alone:
            self._moved, self._moved_slots = _apart(self._moved), [_apart(slot) for slot in self._moved_slots]
            self._added = self._added and self._added.per_client()
        return parameters, buffers

    def take(self, gradients: list[Tensor], step: int) -> None:
        """A step of the optimiser."""
        slopes = [gradients[place] for place in self._places]
        if self._alone:
            slopes = _apart(slopes)
        if self._added:
            self._added.add_to(slopes, self._moved)
        self._local.step(self._moved, slopes, self._moved_slots, number=step + 1, rate=self._rate)

    def finish(self, losses: Tensor, memory: ModelState) -> PlanResult:
        self._local.finish(self._trainable, self.slots)
        return PlanResult(self.states, losses, self.slots, memory)


@torch.no_grad()
def follow_gradients(
    execution: Execution, local_start: LocalStart, local: LocalOptimiser, data: TensorData, plan: BatchPlan, rate: float
) -> PlanResult:
    """The clients after all steps along the gradients of their batches."""
    cohort = CohortSteps(execution, local_start, local, len(plan.order), rate)
    rows, weights = _on_device(plan, cohort.states, data)
    losses = torch.zeros_like(weights)
    bound = -1
    for active, width, steps in plan.segments():
        if active != bound:
            bound, along_gradient = active, execution.bind_cohort(*cohort.bind(active))
        along, part = slice(steps.start, steps.stop), (slice(active), slice(width))
        full = (plan.sizes[along, :active] == width).all(1)
        each = zip(steps, rows[along, *part].flatten(1), weights[along, *part], losses[along, *part], full, strict=True)
        for step, drawn, weight, kept, is_full in each:
            batch = Batch(*data.samples(drawn), weight, plan.sizes[step, :active], bool(is_full))
            gradients, found = along_gradient.gradients(batch)
            kept.copy_(found)
            cohort.take(gradients, step)
    return cohort.finish(losses, {})


@torch.no_grad()
def follow_rule(
    execution: Execution,
    local_start: LocalStart,
    local: LocalOptimiser,
    data: TensorData,
    plans: Sequence[BatchPlan],
    rate: float,
    rule: GradientRule,
    memory: ModelState,
    streams: NamedDraws,
) -> PlanResult:
    """The clients after all steps of a method's own rule, which has a plan for each of its draws."""
    first, clients = plans[0], len(plans[0].order)
    cohort = CohortSteps(execution, local_start, local, clients, rate)
    remembered = {name: expand_to_clients(tensor, clients).clone() for name, tensor in memory.items()}
    drawn = [_on_device(plan, cohort.states, data) for plan in plans]
    changed = ChangedSamples(data=data, plans=plans, rows=[rows for rows, _ in drawn])
    losses = drawn[0][1].new_zeros(*first.sizes.shape, 1)
    bound = -1
    for active, _, steps in first.segments():
        if active != bound:
            bound, (parameters, buffers) = active, cohort.bind(active)
            own_memory = {name: tensor[:active] for name, tensor in remembered.items()}
        for step in steps:
            at = StepContext(
                execution=execution,
                carried=buffers,
                memory=own_memory,
                streams=streams,
                samples=changed,
                step=step,
                clients=streams.clients[:active],
            )
            batches = [
                _batch(data, plan, *on_device, step, active)._replace(draw=number)
                for number, (plan, on_device) in enumerate(zip(plans, drawn, strict=True))
            ]
            gradients, found = rule(at, parameters, batches)
            losses[step, :active, 0] = found
            cohort.take(gradients, step)
            rule.after(at, parameters)
    return cohort.finish(losses, remembered)


def ordered_memory(memory: ModelState, order: Tensor) -> ModelState:
    """A row for each client, in the plan's order; what all share stays as it is."""
    return {name: t if len(t) == 1 else take_clients({name: t}, order)[name] for name, t in memory.items()}


def _on_device(plan: BatchPlan, states: ModelState, data: TensorData) -> tuple[Tensor, Tensor]:
    """The plan's rows and weights."""
    like = next(tensor for tensor in states.values() if tensor.is_floating_point())
    return torch.from_numpy(plan.rows).to(data.x.device), torch.from_numpy(plan.weights()).to(like)


def _batch(data: TensorData, plan: BatchPlan, rows: Tensor, weights: Tensor, step: int, active: int) -> Batch:
    sizes, width = plan.sizes[step, :active], plan.width(step, active)
    samples = data.samples(rows[step, :active, :width].flatten())
    return Batch(*samples, weights[step, :active, :width], sizes, bool((sizes == width).all()))


def _apart(stacked: list[Tensor]) -> list[Tensor]:
    """Every client's own tensors. What stands last in a tensor is rounded otherwise (in scalar instructions, without
    fused products), so that where clients are trained one by one their steps are taken one by one, too.
    """
    return [own for tensor in stacked for own in tensor]
