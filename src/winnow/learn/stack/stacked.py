"""All clients in one tensor program: folded activations, stacked parameters."""

import torch
from torch import Tensor, nn

from winnow.learn.local import LocalUpdate
from winnow.learn.stack.chain import Chain
from winnow.learn.stack.data import TensorData
from winnow.learn.stack.execution import Batch, Cohort, Look
from winnow.learn.stack.graphed import GraphedRounds
from winnow.learn.stack.looped import LoopedExecution
from winnow.learn.stack.losses import Loss
from winnow.learn.stack.plan import Plan
from winnow.learn.stack.state import Layout, ModelState, apart
from winnow.learn.stack.twins import Fold, Twin, stacked_twin


class StackedExecution:
    """The model with every layer that has parameters replaced by its stacked twin."""

    name = "stacked"

    def __init__(self, module: nn.Module, loss: Loss, notice: str = "", chain: Chain | None = None) -> None:
        self.notice = notice
        self.chain = chain
        self.layout = Layout.of(module)
        self.loss = loss
        self.fold = Fold()
        self.twin = stacked_twin(module, self.fold)
        self._plain = LoopedExecution(module, loss)
        self.module = self._plain.module
        self._places = _places(self.twin, self.layout.names)
        self._graphs: GraphedRounds | None = None

    @torch.no_grad()
    def run_plan(
        self, start: ModelState, local: LocalUpdate, data: TensorData, plan: Plan, *, rate: float
    ) -> tuple[ModelState, Tensor] | None:
        """On a CUDA device, by graphs that are kept for the rounds to come."""
        if not data.x.is_cuda:
            return None
        if self._graphs is None or not self._graphs.fits(local, plan):
            self._graphs = GraphedRounds(self, data, local, start, plan)
        return self._graphs.states, self._graphs.run(start, plan, rate)

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
        outputs: Tensor = self.twin(x.flatten(0, 1))
        return apart(outputs, len(x))

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
