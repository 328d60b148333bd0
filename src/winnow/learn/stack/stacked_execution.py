"""All clients in one tensor program: folded activations, stacked parameters."""

import torch
from torch import Tensor, nn

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.cuda_graphs import CudaGraphTraining
from winnow.learn.stack.execution_interface import Batch, CohortGradients, ExecutionName, ForwardPass
from winnow.learn.stack.flat_client_data import TensorData
from winnow.learn.stack.local_start import LocalStart
from winnow.learn.stack.loop_execution import LoopExecution
from winnow.learn.stack.losses import Loss
from winnow.learn.stack.mlp_gradients import MlpGradients
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.stacked_layers import FoldedShape, StackedLayer, stack_layers
from winnow.learn.stack.trainable_state import ModelState, StateLayout, split_clients

MAX_CACHED_GRAPHS = 4
"""A cohort in chunks has chunks of two sizes, which differ by one client; a method may train twice a round."""


class StackedExecution:
    """The model with every layer that has parameters replaced by its stacked twin."""

    name: ExecutionName = "stacked"
    threads: int | None = None

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        notice: str = "",
        mlp: MlpGradients | None = None,
        *,
        precision: Precision = "float32",
    ) -> None:
        self.notice = notice
        self.precision = precision
        self.mlp = mlp
        self.layout = StateLayout.of(module)
        self.loss = loss
        self.fold = FoldedShape()
        self.twin = stack_layers(module, self.fold)
        self._plain = LoopExecution(module, loss, precision=precision)
        self.module = self._plain.module
        self._places = _places(self.twin, self.layout.names)
        self._graphs: list[CudaGraphTraining] = []

    @torch.no_grad()
    def run_plan(
        self, local_start: LocalStart, local: LocalOptimiser, data: TensorData, plan: BatchPlan, *, rate: float
    ) -> tuple[ModelState, Tensor] | None:
        """On a CUDA device, by graphs that are kept for the rounds to come: they read the data from where these are.

        So they do not serve data that are loaded anew for every round.
        """
        if not data.x.is_cuda or data.loaded_clients is not None:
            return None
        graphs = next((kept for kept in self._graphs if kept.fits(data, local, local_start, plan)), None)
        if graphs is None:
            graphs = CudaGraphTraining(self, data, local, local_start, plan, self._graphs[-1] if self._graphs else None)
            self._graphs = [*self._graphs, graphs][-MAX_CACHED_GRAPHS:]
        return graphs.states, graphs.run(local_start, plan, rate)

    def bind_cohort(self, trained: list[Tensor], carried: list[Tensor]) -> CohortGradients:
        if self.mlp is not None:
            self.mlp.bind(trained)
            return self.mlp
        self.twin.train()
        leaves = [tensor.detach().requires_grad_() for tensor in trained]
        self._bind(self.layout.join(leaves, carried))
        return _StackedCohort(self, leaves)

    def forward_pass(self, layer: str | None) -> ForwardPass | None:
        return None

    @torch.no_grad()
    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if len(x) == 1:
            return self._plain.outputs(states, x)
        self.twin.eval()
        self._bind(states)
        self.fold.mask = mask
        with autocast_context(self.precision, x.device):
            outputs: Tensor = self.twin(x.flatten(0, 1))
        return split_clients(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), len(x))

    def _bind(self, states: ModelState) -> None:
        for name, (twin, attribute) in self._places.items():
            setattr(twin, attribute, states[name])
            self.fold.clients = len(states[name])


class _StackedCohort:
    def __init__(self, execution: StackedExecution, leaves: list[Tensor]) -> None:
        self.execution = execution
        self.leaves = leaves

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        execution = self.execution
        execution.fold.mask = None if batch.full else batch.weight > 0
        with torch.enable_grad():
            with autocast_context(execution.precision, batch.x.device):
                losses = execution.loss(execution.twin(batch.x), batch.y)
            gradients = torch.autograd.grad(
                losses, self.leaves, batch.weight.flatten(), allow_unused=True, materialize_grads=True
            )
        return [gradient.contiguous() for gradient in gradients], losses.detach().view(batch.weight.shape)


def _places(twin: nn.Module, names: tuple[str, ...]) -> dict[str, tuple[StackedLayer, str]]:
    """For each entry of a state, the twin that uses it and under which name."""
    layers = {path: layer for path, layer in twin.named_modules() if isinstance(layer, StackedLayer)}
    split = {name: name.rpartition(".") for name in names}
    return {name: (layers[path], attribute) for name, (path, _, attribute) in split.items()}
