"""Losses of single samples: the mean over a ragged batch is taken by the trainer, never by the loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from winnow.core import ModelError


@dataclass(frozen=True)
class Loss:
    """`loss(outputs, targets)` gives one loss a sample: [n, ...], [n, ...] -> [n]."""

    name: str
    per_sample: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.per_sample(outputs, targets)

    def losses_and_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The losses and the derivative of each with respect to its own sample's outputs."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            losses = self(leaf, targets)
            (slope,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), slope

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Refuse a loss that has already averaged over the batch, or does not fit the model."""
        try:
            losses = self(outputs, targets)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
            raise ModelError(f"the loss '{self.name}' does not accept {shapes}: {first_line(error)}") from error
        if losses.shape != outputs.shape[:1]:
            raise ModelError(
                f"the loss '{self.name}' returned shape {tuple(losses.shape)} for {len(outputs)} samples; "
                'it must return one loss per sample (use reduction="none")'
            )


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _mean_per_sample(losses: Tensor) -> Tensor:
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return _mean_per_sample((outputs - targets.reshape(outputs.shape)).square())


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _mean_per_sample(functional.cross_entropy(outputs, targets, reduction="none"))


def _negative_log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    return _mean_per_sample(functional.nll_loss(outputs, targets, reduction="none"))


class _SquaredError(Loss):
    """Its slope is written out: for small models autograd's bookkeeping costs more than the arithmetic."""

    def losses_and_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        difference = outputs - targets.reshape(outputs.shape)
        per_output = 2 * len(outputs) / max(outputs.numel(), 1)
        return _mean_per_sample(difference.square()), difference.mul_(per_output)


class _CrossEntropy(Loss):
    """d(-log softmax)/d outputs = softmax - one-hot."""

    def losses_and_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.dim() != 2 or targets.dim() != 1:
            return super().losses_and_gradients(outputs, targets)
        log_probability = torch.log_softmax(outputs, 1)
        chosen = targets.unsqueeze(1)
        losses = log_probability.gather(1, chosen).squeeze(1).neg_()
        slope = log_probability.exp_()
        return losses, slope.scatter_add_(1, chosen, slope.new_full(chosen.shape, -1.0))


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        _SquaredError("mse", _squared_error),
        _CrossEntropy("cross-entropy", _cross_entropy),
        Loss("nll", _negative_log_likelihood),
    )
}


def as_loss(loss: str | Loss | Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """A loss by its name, or a user's function of (outputs, targets) that returns one loss a sample."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        return Loss(getattr(loss, "__name__", type(loss).__name__), loss)
    if loss not in LOSSES:
        raise ModelError(f"unknown loss '{loss}'; choose one of {', '.join(LOSSES)} or pass a function")
    return LOSSES[loss]
