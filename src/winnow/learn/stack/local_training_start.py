"""Where clients' local training starts from."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.trainable_state import ModelState, take_clients


@dataclass(frozen=True, kw_only=True)
class LocalStart:
    """Where K clients start from, and what is added to their gradients: ∇f_k(w) + μ·(w − anchor_k) + offset_k.

    μ is `proximal_weight` and the offset `gradient_offset` (a control variate, for instance).

    Tensors have a leading dimension of K clients, or of 1 where all share them.
    """

    states: ModelState
    proximal_weight: float = 0.0
    anchor: ModelState | None = None
    """What the proximal term holds clients near; the start unless given. Only trained names matter here and in the
    offset.
    """
    gradient_offset: ModelState | None = None
    trainable: frozenset[str] | None = None
    """The names of what is trained, if not everything; the rest stays as it is."""
    slots: tuple[ModelState, ...] = ()
    """Where the optimiser's own tensors start, in the order of its `initial_state`; none: afresh."""

    @classmethod
    def shared(cls, state: Mapping[str, Tensor]) -> "LocalStart":
        """All clients start from one model."""
        return cls(states={name: tensor.unsqueeze(0) for name, tensor in state.items()})

    @property
    def corrected(self) -> bool:
        return self.proximal_weight != 0 or self.gradient_offset is not None

    def ordered(self, order: Tensor) -> "LocalStart":
        """The clients' rows in another order; what all share stays as it is."""
        return LocalStart(
            states=_reordered(self.states, order),
            proximal_weight=self.proximal_weight,
            anchor=None if self.anchor is None else _reordered(self.anchor, order),
            gradient_offset=None if self.gradient_offset is None else _reordered(self.gradient_offset, order),
            trainable=self.trainable,
            slots=tuple(_reordered(slot, order) for slot in self.slots),
        )

    def optimiser_state(
        self, local: LocalOptimiser, names: tuple[str, ...], parameters: list[Tensor]
    ) -> list[list[Tensor]]:
        """The optimiser's tensors at the start, like these parameters of these names."""
        if not self.slots:
            return local.initial_state(parameters)
        return [
            [expand_to_clients(slot[name], len(like)).clone() for name, like in zip(names, parameters, strict=True)]
            for slot in self.slots
        ]

    def trainable_indices(self, names: tuple[str, ...]) -> list[int]:
        """Which of these are trained."""
        return [place for place, name in enumerate(names) if self.trainable is None or name in self.trainable]

    def stacked(self, clients: int) -> ModelState:
        """A copy of the states with a row for each client."""
        return {name: expand_to_clients(tensor, clients).clone() for name, tensor in self.states.items()}


def expand_to_clients(tensor: Tensor, clients: int) -> Tensor:
    """A row for each client; a shared one is seen by all."""
    return tensor.expand(clients, *tensor.shape[1:])


def _reordered(states: ModelState, order: Tensor) -> ModelState:
    if all(len(tensor) == 1 for tensor in states.values()):
        return states
    return take_clients({name: expand_to_clients(tensor, len(order)) for name, tensor in states.items()}, order)


@dataclass(frozen=True, kw_only=True)
class GradientCorrection:
    """The terms added to gradients, μ·(w − anchor) + offset, bound to what is trained in the layout's order."""

    proximal_weight: float
    anchor: list[Tensor]
    gradient_offset: list[Tensor]

    @classmethod
    def of(cls, local_start: LocalStart, names: tuple[str, ...], clients: int) -> "GradientCorrection | None":
        """None where nothing is added, so that it costs nothing."""
        if not local_start.corrected:
            return None
        anchor = (local_start.anchor or local_start.states) if local_start.proximal_weight else {}
        names = tuple(names[place] for place in local_start.trainable_indices(names))
        return cls(
            proximal_weight=local_start.proximal_weight,
            anchor=[expand_to_clients(anchor[name], clients).clone() for name in names] if anchor else [],
            gradient_offset=[expand_to_clients(local_start.gradient_offset[name], clients).clone() for name in names]
            if local_start.gradient_offset
            else [],
        )

    def leading_clients(self, clients: int) -> "GradientCorrection":
        """That of the leading clients."""
        return GradientCorrection(
            proximal_weight=self.proximal_weight,
            anchor=[t[:clients] for t in self.anchor],
            gradient_offset=[t[:clients] for t in self.gradient_offset],
        )

    def per_client(self) -> "GradientCorrection":
        """The same for tensors of one client each."""
        anchor, gradient_offset = (
            [own for tensor in tensors for own in tensor] for tensors in (self.anchor, self.gradient_offset)
        )
        return GradientCorrection(proximal_weight=self.proximal_weight, anchor=anchor, gradient_offset=gradient_offset)

    def add_to(self, gradients: list[Tensor], parameters: list[Tensor]) -> None:
        if self.anchor:
            torch._foreach_add_(gradients, torch._foreach_sub(parameters, self.anchor), alpha=self.proximal_weight)
        if self.gradient_offset:
            torch._foreach_add_(gradients, self.gradient_offset)
