"""`torch.func.vmap` over clients, for models with layers that have no stacked form."""

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from winnow.learn.stack.execution_interface import Batch, CohortGradients, ExecutionName
from winnow.learn.stack.loop_execution import LoopExecution
from winnow.learn.stack.per_sample_losses import Loss
from winnow.learn.stack.precision import Precision, autocast_context
from winnow.learn.stack.trainable_state import split_clients


class VmapExecution(LoopExecution):
    """Gradients of all clients with equally large batches in one call; evaluation as in the loop."""

    name: ExecutionName = "vmap"

    def __init__(self, module: nn.Module, loss: Loss, notice: str = "", *, precision: Precision = "float32") -> None:
        super().__init__(module, loss, notice, precision=precision)
        self._step = self._mapped(loss)

    def bind_cohort(self, trained: list[Tensor], carried: list[Tensor], loss: Loss | None = None) -> CohortGradients:
        self.module.train()
        return _MappedCohort(self, trained, carried, self._step if loss is None else self._mapped(loss))

    def _mapped(self, loss: Loss) -> Callable[..., tuple[list[Tensor], tuple[Tensor, list[Tensor]]]]:
        """(trained, carried, x, y, weight), each with a dimension of clients -> gradients, (losses, carried)."""
        step: Callable[..., tuple[list[Tensor], tuple[Tensor, list[Tensor]]]] = vmap(
            grad(partial(self._objective, loss), has_aux=True), randomness="different"
        )
        return step

    def _objective(
        self, loss: Loss, trained: list[Tensor], carried: list[Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        names = (*self.layout.trained, *self.layout.carried)
        state = dict(zip(names, (*trained, *carried), strict=True))
        losses = loss(functional_call(self.module, state, (x,)), y)
        return (losses * weight).sum(), (losses, [state[name] for name in self.layout.carried])


class _MappedCohort:
    def __init__(
        self,
        execution: VmapExecution,
        trained: list[Tensor],
        carried: list[Tensor],
        step: Callable[..., tuple[list[Tensor], tuple[Tensor, list[Tensor]]]],
    ) -> None:
        self.execution, self.step = execution, step
        self.trained = trained
        self.carried = carried

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # the notice says that vmap is the way
            return self._gradients(batch)

    def _gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        gradients = [torch.empty_like(tensor) for tensor in self.trained]
        losses = torch.zeros_like(batch.weight)
        for size in sorted(set(batch.sizes.tolist())):
            which = torch.from_numpy((batch.sizes == size).nonzero()[0]).to(losses.device)
            own, own_losses = self._equal_batches(which, batch, size)
            losses[which, :size] = own_losses
            for stacked, gradient in zip(gradients, own, strict=True):
                stacked[which] = gradient
        return gradients, losses

    def _equal_batches(self, which: Tensor, batch: Batch, size: int) -> tuple[list[Tensor], Tensor]:
        """Padding would spoil code that looks across samples, so a call takes clients with the same batch size."""
        clients = len(batch.weight)
        x, y = (split_clients(samples, clients)[which, :size] for samples in (batch.x, batch.y))
        carried = [tensor[which] for tensor in self.carried]
        trained = [tensor[which] for tensor in self.trained]
        with autocast_context(self.execution.precision, x.device):
            gradients, (losses, updated) = self.step(trained, carried, x, y, batch.weight[which, :size])
        for stacked, tensor in zip(self.carried, updated, strict=True):
            stacked[which] = tensor
        return gradients, losses
