"""All clients in one tensor program: folded activations, stacked parameters."""

import copy

import torch
from torch import Tensor, nn

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.cuda_graphs import CudaGraphTraining
from winnow.learn.stack.execution_interface import Batch, CohortGradients, ExecutionName, ForwardPass, PlanResult
from winnow.learn.stack.flat_client_data import TensorData
from winnow.learn.stack.local_training_start import LocalStart
from winnow.learn.stack.loop_execution import LoopExecution
from winnow.learn.stack.mlp_gradients import MlpGradients
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.stacked_layers import FoldedShape, StackedLayer, stack_layers
from winnow.learn.stack.stacked_or_compiled_gradients import StackedCohort, compile_cohort
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
        compiled: bool = False,
    ) -> None:
        self.compiled = compiled
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
    ) -> PlanResult | None:
        """On a CUDA device, by graphs that are kept for the rounds to come: they read the data from where these are.

        So they do not serve data that are loaded anew for every round.
        """
        if not data.x.is_cuda or data.loaded_clients is not None:
            return None
        graphs = next((kept for kept in self._graphs if kept.fits(data, local, local_start, plan)), None)
        if graphs is None:
            bind_compiled = self.bind_compiled if self.compiled and self.mlp is None else None
            earlier = self._graphs[-1] if self._graphs else None
            graphs = CudaGraphTraining(self, data, local, local_start, plan, earlier, bind_compiled)
            self._graphs = [*self._graphs, graphs][-MAX_CACHED_GRAPHS:]
        losses = graphs.run(local_start, plan, rate)
        return PlanResult(graphs.states, losses, graphs.slots)

    def bind_cohort(self, trained: list[Tensor], carried: list[Tensor], loss: Loss | None = None) -> CohortGradients:
        if self.mlp is not None:
            self.mlp.bind(trained, loss or self.loss)
            return self.mlp
        return self._bind_twin(trained, carried, loss)

    def bind_compiled(self, trained: list[Tensor], carried: list[Tensor], batch: Batch) -> CohortGradients:
        """As `bind_cohort`, with kernels that are compiled for batches of this shape, if they compute the same."""
        exact = StackedExecution(copy.deepcopy(self.module).double(), self.loss)
        wide = ([t.double() if t.is_floating_point() else t.clone() for t in some] for some in (trained, carried))
        wide_trained, wide_carried = wide
        exactly = exact._bind_twin(wide_trained, wide_carried)
        return compile_cohort(self._bind_twin(trained, carried), exactly, carried, batch)

    def _bind_twin(self, trained: list[Tensor], carried: list[Tensor], loss: Loss | None = None) -> StackedCohort:
        self.twin.train()
        per_sample = loss or self.loss
        leaves = [tensor.detach().requires_grad_() for tensor in trained]
        self._bind(self.layout.join(leaves, carried))
        return StackedCohort(
            fold=self.fold,
            precision=self.precision,
            leaves=leaves,
            losses=lambda x, y: per_sample(self.twin(x), y),
        )

    def forward_pass(self, layer: str | None) -> ForwardPass | None:
        return None

    @torch.no_grad()
    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if len(x) == 1:
            return self._plain.outputs(states, x, mask)
        if self.mlp is not None and x.is_floating_point():
            self.mlp.bind([states[name] for name in self.layout.trained], self.loss)
            return self.mlp.outputs(x)
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


def _places(twin: nn.Module, names: tuple[str, ...]) -> dict[str, tuple[StackedLayer, str]]:
    """For each entry of a state, the twin that uses it and under which name."""
    layers = {path: layer for path, layer in twin.named_modules() if isinstance(layer, StackedLayer)}
    split = {name: name.rpartition(".") for name in names}
    return {name: (layers[path], attribute) for name, (path, _, attribute) in split.items()}
