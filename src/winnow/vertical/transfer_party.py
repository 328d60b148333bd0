"""The owner of the labels in transfer learning: its encoder and the head, and gradients for the other's encoder."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from winnow.core import ModelError
from winnow.core.message_decoding import UnreadableError
from winnow.core.random_streams import stream
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.label_party import LabelParty
from winnow.vertical.private_gradients import Tensors, private_gradients
from winnow.vertical.transfer_plan import TransferPlan

ENCODER, HEAD = "encoder.", "head."


class TransferLabelParty(LabelParty):
    """For a common row with representations u here and v at the other owner, and label y, the loss is
    ℓ(h(u), y) + ℓ(h(v), y) + align·mean((v − u)²), where u stands still in the last term; for a row that only this
    owner has it is ℓ(h(u), y). (Liu et al. 2020 align as well; their h is fixed by the labelled rows.)
    """

    def __init__(self, plan: TransferPlan, rows: KeyedRows, others: KeyedRows) -> None:
        super().__init__(plan, rows)
        self._transfer, self._others = plan, others
        self._own_order: np.ndarray = np.arange(0)
        self._step = 0

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        self._own_order = stream(self._plan.seed, "transfer learning", "own rows", epoch).permutation(len(self._others))
        self._step = 0

    def learn(
        self, activations: Mapping[str, Tensor], batch: np.ndarray, noise: np.random.Generator
    ) -> dict[str, Tensor]:
        shown = self._checked(activations[self._transfer.receiver], batch)
        x, y = self._x(batch), self._y[torch.from_numpy(batch)]
        parts = [((shown,), (x, y)), *((((), own)) for own in self._own_batch())]
        if self._plan.protection.noise:
            losses, slope = self._private_steps(parts, noise)
        else:
            losses, slope = self._plain_steps(parts)
            slope = self._plan.protection.leaving(slope, noise)
        self._note(losses, slope.flatten(1), y)
        return {self._transfer.receiver: slope}

    def score(self, activations: Mapping[str, Tensor], batch: np.ndarray) -> None:
        """What the other owner's model makes of rows that nobody trains on."""
        outputs = self._top.outputs(self._checked(activations[self._transfer.receiver], batch))
        self._scored.append((outputs, self._y[torch.from_numpy(batch)]))

    def head(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._top.module.state_dict().items()}

    # Steps ------------------------------------------------------------------------------------------------------------

    def _own_batch(self) -> list[Tensors]:
        """The next rows that only this owner has: each at most once an epoch."""
        size = self._transfer.own_batch_size
        rows = torch.from_numpy(self._own_order[self._step * size : (self._step + 1) * size])
        self._step += 1
        assert self._others.x is not None
        assert self._others.y is not None
        return [(self._others.x[rows], self._others.y[rows])] if len(rows) else []

    def _checked(self, shown: Tensor, batch: np.ndarray) -> Tensor:
        """Both encoders must lead into one space."""
        assert self._bottom is not None
        own = self._bottom.outputs(self._x(batch[:1]))
        if shown.shape[1:] != own.shape[1:]:
            theirs, ours = (tuple(each.shape[1:]) for each in (shown, own))
            raise UnreadableError(
                f"the encoder of {self._transfer.receiver} gives {theirs} numbers a row and that of"
                f" {self._plan.labels} {ours}; they must be the same"
            )
        return shown

    def _parameters(self) -> dict[str, Tensor]:
        assert self._bottom is not None
        named = ((ENCODER, self._bottom.module), (HEAD, self._top.module))
        return {
            f"{prefix}{name}": value
            for prefix, module in named
            for name, value in module.named_parameters()
            if value.requires_grad
        }

    def _losses_of(self, parameters: Mapping[str, Tensor], cut: Tensors, own: Tensors) -> Tensor:
        """One a sample."""
        assert self._bottom is not None
        encoder, head = (
            {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
            for prefix in (ENCODER, HEAD)
        )
        x, y = own
        here = functional_call(self._bottom.module, encoder, (x,))
        outputs = functional_call(self._top.module, head, (here,))
        loss = self._loss_for(outputs)
        losses = loss(outputs, y)
        for there in cut:
            distance = (there - here.detach()).square().flatten(1).mean(1)
            losses = losses + loss(functional_call(self._top.module, head, (there,)), y)
            losses = losses + self._transfer.align * distance
        return losses

    def _plain_steps(self, parts: list[tuple[Tensors, Tensors]]) -> tuple[Tensor, Tensor]:
        parameters = self._parameters()
        shown = parts[0][0][0].detach().requires_grad_()
        try:
            losses = self._losses_of(parameters, (shown,), parts[0][1])
            total = losses.mean() + sum(self._losses_of(parameters, (), own).mean() for _, own in parts[1:])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ModelError(f"encoder and head of {self._plan.labels} do not fit one another: {error}") from error
        *found, slope = torch.autograd.grad(total, [*parameters.values(), shown], allow_unused=True)
        self._apply(dict(zip(parameters, found, strict=True)))
        return losses.detach(), torch.zeros_like(shown) if slope is None else slope

    def _private_steps(self, parts: list[tuple[Tensors, Tensors]], noise: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Everything here learns from noisy gradients, for the head leaves, and distances tell of the encoder."""
        parameters = self._parameters()
        self._loss_for(self._top.outputs(parts[0][0][0]))
        taken = [
            private_gradients(self._losses_of, parameters, cut, own, self._plan.protection, noise) for cut, own in parts
        ]
        self._apply({name: torch.stack([each[name] for _, each, _ in taken]).sum(0) for name in parameters})
        losses, _, (slope,) = taken[0]
        return losses, slope

    def _apply(self, gradients: Mapping[str, Tensor | None]) -> None:
        assert self._bottom is not None
        for prefix, module in ((ENCODER, self._bottom), (HEAD, self._top)):
            module.step({k.removeprefix(prefix): v for k, v in gradients.items() if k.startswith(prefix)})
