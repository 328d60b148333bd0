"""One client at a time with plain autograd: slow, and right for any model."""

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.execution_interface import Batch, CohortGradients, ExecutionName, ForwardPass, PlanResult
from winnow.learn.stack.flat_client_data import TensorData
from winnow.learn.stack.local_training_start import LocalStart
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.trainable_state import ModelState, StateLayout


class LoopExecution:
    """The plain module, pointed at one client's rows of the stacked tensors after another."""

    name: ExecutionName = "loop"
    threads: int | None = None

    def __init__(self, module: nn.Module, loss: Loss, notice: str = "", *, precision: Precision = "float32") -> None:
        self.module = copy.deepcopy(module)
        self.loss = loss
        self.precision = precision
        self.notice = notice
        self.layout = StateLayout.of(self.module)
        self.places = {name: _Place.of(self.module, name) for name in self.layout.names}

    def run_plan(
        self, local_start: LocalStart, local: LocalOptimiser, data: TensorData, plan: BatchPlan, *, rate: float
    ) -> PlanResult | None:
        return None

    def bind_cohort(self, trained: list[Tensor], carried: list[Tensor], loss: Loss | None = None) -> CohortGradients:
        self.module.train()
        return _LoopedCohort(self, trained, carried, loss or self.loss)

    def point_at(self, trained: list[Tensor], carried: list[Tensor]) -> None:
        """Make one client's tensors the module's own, without copying."""
        for name, tensor in self.layout.join(trained, carried).items():
            self.places[name].point_at(tensor)

    def read_back(self, carried: list[Tensor]) -> None:
        """Keep buffers that the forward pass replaced instead of updating them in place."""
        for name, tensor in zip(self.layout.carried, carried, strict=True):
            current = self.places[name].tensor
            if current.data_ptr() != tensor.data_ptr():
                tensor.copy_(current)

    def client_gradients(
        self, parameters: list[Tensor], x: Tensor, y: Tensor, weight: Tensor, loss: Loss
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """The gradient of the loss of one client's batch, and the losses to report: [n], or [] if it is one for all."""
        with autocast_context(self.precision, x.device):
            losses = loss(self.module(x), y)
        return torch.autograd.grad(losses, parameters, weight, allow_unused=True, materialize_grads=True), losses

    def forward_pass(self, layer: str | None) -> ForwardPass | None:
        return None

    @torch.no_grad()
    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return torch.stack([self._evaluate(states, k, rows) for k, rows in enumerate(x)])
        counts = mask.sum(1).clamp_min(1).tolist()  # padding stands last, and may not count in batch statistics
        own = [self._evaluate(states, k, rows[:count]) for k, (rows, count) in enumerate(zip(x, counts, strict=True))]
        return torch.stack([torch.cat([rows, rows.new_zeros(x.shape[1] - len(rows), *rows.shape[1:])]) for rows in own])

    def _evaluate(self, states: ModelState, client: int, x: Tensor) -> Tensor:
        self.module.eval()
        for name, place in self.places.items():
            place.point_at(states[name][client])
        with autocast_context(self.precision, x.device):
            outputs: Tensor = self.module(x)
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


@dataclass(frozen=True)
class _Place:
    """Where a module keeps a parameter or buffer."""

    owner: nn.Module
    name: str

    @classmethod
    def of(cls, module: nn.Module, path: str) -> "_Place":
        parent, _, name = path.rpartition(".")
        return cls(module.get_submodule(parent), name)

    @property
    def tensor(self) -> Tensor:
        tensor = getattr(self.owner, self.name)
        assert isinstance(tensor, Tensor)
        return tensor

    def point_at(self, tensor: Tensor) -> None:
        self.tensor.data = tensor.detach()


@dataclass
class _LoopedCohort:
    execution: LoopExecution
    trained: list[Tensor]
    carried: list[Tensor]
    loss: Loss
    parameters: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        places = self.execution.places
        self.parameters = [places[name].tensor for name in self.execution.layout.trained]

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        gradients = [torch.empty_like(tensor) for tensor in self.trained]
        losses = torch.zeros_like(batch.weight)
        samples = zip(batch.x.chunk(len(losses)), batch.y.chunk(len(losses)), batch.weight, batch.sizes, strict=True)
        for client, (x, y, weight, size) in enumerate(samples):
            own, losses[client, :size] = self._one_client(client, x[:size], y[:size], weight[:size])
            for stacked, gradient in zip(gradients, own, strict=True):
                stacked[client] = gradient
        return gradients, losses

    def _one_client(self, client: int, x: Tensor, y: Tensor, weight: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Its loss and gradient, on copies: where a tensor lies in memory shows in the last bits of a product, and a
        client's must not depend on its place in the cohort.
        """
        carried = [tensor[client] for tensor in self.carried]
        self.execution.point_at([tensor[client].clone() for tensor in self.trained], [t.clone() for t in carried])
        with torch.enable_grad():
            gradients, losses = self.execution.client_gradients(
                self.parameters, x.clone(), y.clone(), weight.clone(), self.loss
            )
        self.execution.read_back(carried)
        return gradients, losses.detach()
