"""All clients in one tensor program: folded activations, stacked parameters."""

import torch
from torch import Tensor, nn

from winnow.learn.local import LocalUpdate
from winnow.learn.stack.chain import Chain
from winnow.learn.stack.data import TensorData
from winnow.learn.stack.departure import Departure
from winnow.learn.stack.execution import Batch, Cohort, Look, Way
from winnow.learn.stack.graphed import GraphedRounds
from winnow.learn.stack.looped import LoopedExecution
from winnow.learn.stack.losses import Loss
from winnow.learn.stack.plan import Plan
from winnow.learn.stack.precision import Precision, casting
from winnow.learn.stack.state import Layout, ModelState, apart
from winnow.learn.stack.twins import Fold, Twin, stacked_twin

KEPT_GRAPHS = 4
"""A cohort in chunks has chunks of two sizes, which differ by one client; a method may train twice a round."""


class StackedExecution:
    """The model with every layer that has parameters replaced by its stacked twin."""

    name: Way = "stacked"
    threads: int | None = None

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        notice: str = "",
        chain: Chain | None = None,
        *,
        precision: Precision = "float32",
    ) -> None:
        self.notice = notice
        self.precision = precision
        self.chain = chain
        self.layout = Layout.of(module)
        self.loss = loss
        self.fold = Fold()
        self.twin = stacked_twin(module, self.fold)
        self._plain = LoopedExecution(module, loss, precision=precision)
        self.module = self._plain.module
        self._places = _places(self.twin, self.layout.names)
        self._graphs: list[GraphedRounds] = []

    @torch.no_grad()
    def run_plan(
        self, departure: Departure, local: LocalUpdate, data: TensorData, plan: Plan, *, rate: float
    ) -> tuple[ModelState, Tensor] | None:
        """On a CUDA device, by graphs that are kept for the rounds to come: they read the data from where these are.

        So they do not serve data that are loaded anew for every round.
        """
        if not data.x.is_cuda or data.held is not None:
            return None
        graphs = next((kept for kept in self._graphs if kept.fits(data, local, departure, plan)), None)
        if graphs is None:
            graphs = GraphedRounds(self, data, local, departure, plan, self._graphs[-1] if self._graphs else None)
            self._graphs = [*self._graphs, graphs][-KEPT_GRAPHS:]
        return graphs.states, graphs.run(departure, plan, rate)

    def cohort(self, trained: list[Tensor], carried: list[Tensor]) -> Cohort:
        if self.chain is not None:
            self.chain.bind(trained)
            return self.chain
        self.twin.train()
        leaves = [tensor.detach().requires_grad_() for tensor in trained]
        self._bind(self.layout.join(leaves, carried))
        return _StackedCohort(self, leaves)

    def look(self, layer: str | None) -> Look | None:
        return None

    @torch.no_grad()
    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if len(x) == 1:
            return self._plain.outputs(states, x)
        self.twin.eval()
        self._bind(states)
        self.fold.mask = mask
        with casting(self.precision, x.device):
            outputs: Tensor = self.twin(x.flatten(0, 1))
        return apart(outputs.to(torch.promote_types(outputs.dtype, torch.float32)), len(x))

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
            with casting(execution.precision, batch.x.device):
                losses = execution.loss(execution.twin(batch.x), batch.y)
            gradients = torch.autograd.grad(
                losses, self.leaves, batch.weight.flatten(), allow_unused=True, materialize_grads=True
            )
        return [gradient.contiguous() for gradient in gradients], losses.detach().view(batch.weight.shape)


def _places(twin: nn.Module, names: tuple[str, ...]) -> dict[str, tuple[Twin, str]]:
    """For each entry of a state, the twin that uses it and under which name."""
    layers = {path: layer for path, layer in twin.named_modules() if isinstance(layer, Twin)}
    split = {name: name.rpartition(".") for name in names}
    return {name: (layers[path], attribute) for name, (path, _, attribute) in split.items()}
