"""Where clients' training departs from."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.learn.stack.model_states import ModelState, take_clients


@dataclass(frozen=True, kw_only=True)
class LocalStart:
    """Where K clients start from, and what is added to their gradients: ∇f_k(w) + pull·(w − anchor_k) + drift_k.

    Tensors have a leading dimension of K clients, or of 1 where all share them.
    """

    states: ModelState
    pull: float = 0.0
    anchor: ModelState | None = None
    """Where it pulls to; the start unless given. Only the trained names matter here and in the drift."""
    drift: ModelState | None = None
    moving: frozenset[str] | None = None
    """The names of what is trained, if not all of it: the rest stays as it is."""

    @classmethod
    def shared(cls, state: Mapping[str, Tensor]) -> "LocalStart":
        """All clients start from one model."""
        return cls(states={name: tensor.unsqueeze(0) for name, tensor in state.items()})

    @property
    def corrected(self) -> bool:
        return self.pull != 0 or self.drift is not None

    def ordered(self, order: Tensor) -> "LocalStart":
        """The clients' rows in another order; what all share stays as it is."""
        return LocalStart(
            states=_reordered(self.states, order),
            pull=self.pull,
            anchor=None if self.anchor is None else _reordered(self.anchor, order),
            drift=None if self.drift is None else _reordered(self.drift, order),
            moving=self.moving,
        )

    def places(self, names: tuple[str, ...]) -> list[int]:
        """Which of these are trained."""
        return [place for place, name in enumerate(names) if self.moving is None or name in self.moving]

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
    """The terms added to gradients, bound to what is trained in the layout's order: pull·(w − anchor) + drift."""

    pull: float
    anchor: list[Tensor]
    drift: list[Tensor]

    @classmethod
    def of(cls, departure: LocalStart, names: tuple[str, ...], clients: int) -> "GradientCorrection | None":
        """None where nothing is added, so that it costs nothing."""
        if not departure.corrected:
            return None
        anchor = (departure.anchor or departure.states) if departure.pull else {}
        names = tuple(names[place] for place in departure.places(names))
        return cls(
            pull=departure.pull,
            anchor=[expand_to_clients(anchor[name], clients).clone() for name in names] if anchor else [],
            drift=[expand_to_clients(departure.drift[name], clients).clone() for name in names]
            if departure.drift
            else [],
        )

    def some(self, clients: int) -> "GradientCorrection":
        """That of the leading clients."""
        return GradientCorrection(
            pull=self.pull, anchor=[t[:clients] for t in self.anchor], drift=[t[:clients] for t in self.drift]
        )

    def apart(self) -> "GradientCorrection":
        """The same for tensors of one client each."""
        anchor, drift = ([own for tensor in tensors for own in tensor] for tensors in (self.anchor, self.drift))
        return GradientCorrection(pull=self.pull, anchor=anchor, drift=drift)

    def add_to(self, gradients: list[Tensor], parameters: list[Tensor]) -> None:
        if self.anchor:
            torch._foreach_add_(gradients, torch._foreach_sub(parameters, self.anchor), alpha=self.pull)
        if self.drift:
            torch._foreach_add_(gradients, self.drift)
