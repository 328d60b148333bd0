"""Losses of single samples: the mean over a ragged batch is taken by the trainer, never by the loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.data.preprocessing import IGNORED, NO_LABEL


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


def _mean_per_sample(losses: Tensor) -> Tensor:
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return _mean_per_sample((outputs - targets.reshape(outputs.shape)).square())


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of classes, −1 being none and no loss; of rows of probabilities; or the mean over a sequence of classes."""
    if targets.is_floating_point():
        return _mean_per_sample(functional.cross_entropy(outputs, targets, reduction="none"))
    if targets.dim() > 1:
        return _mean_of_positions(functional.cross_entropy, outputs, targets)
    return functional.cross_entropy(outputs, targets, ignore_index=NO_LABEL, reduction="none")


def _negative_log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.dim() > 1:
        return _mean_of_positions(functional.nll_loss, outputs, targets)
    return _mean_per_sample(functional.nll_loss(outputs, targets, reduction="none"))


def _mean_of_positions(loss: Callable[..., Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets are sequences [n, t]: outputs [n, t, classes] have a loss at each position but the ignored ones."""
    if outputs.shape[:-1] != targets.shape:
        raise ValueError("sequences as targets need outputs [samples, positions, classes]")
    losses = loss(outputs.movedim(-1, 1), targets, ignore_index=IGNORED, reduction="none").flatten(1)
    return losses.sum(1) / (targets != IGNORED).flatten(1).sum(1).clamp_min(1)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One output a sample, whose sigmoid is the chance of class 1."""
    logits = outputs.reshape(targets.shape)
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")


class _SquaredError(Loss):
    """Its slope is written out: for small models autograd's bookkeeping costs more than the arithmetic."""

    def losses_and_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        difference = outputs - targets.reshape(outputs.shape)
        per_output = 2 * len(outputs) / max(outputs.numel(), 1)
        return _mean_per_sample(difference.square()), difference.mul_(per_output)


class _CrossEntropy(Loss):
    """d(-log softmax)/d outputs = softmax - one-hot, or softmax - probabilities."""

    def losses_and_gradients(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.dim() != 2 or (targets.dim() != 1 and targets.shape != outputs.shape):
            return super().losses_and_gradients(outputs, targets)
        log_probability = torch.log_softmax(outputs, 1)
        if targets.is_floating_point():
            losses = (targets * log_probability).sum(1).neg_()
            return losses, log_probability.exp_().mul_(targets.sum(1, keepdim=True)).sub_(targets)
        losses, weight = torch.ops.aten.nll_loss_forward(log_probability, targets, None, 0, NO_LABEL)
        slope = torch.ops.aten.nll_loss_backward(
            losses.new_ones(len(losses)), log_probability, targets, None, 0, NO_LABEL, weight
        )
        return losses, torch.ops.aten._log_softmax_backward_data(slope, log_probability, 1, outputs.dtype)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        _SquaredError("mse", _squared_error),
        _CrossEntropy("cross-entropy", _cross_entropy),
        Loss("nll", _negative_log_likelihood),
        Loss("bce", _binary_cross_entropy),
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
