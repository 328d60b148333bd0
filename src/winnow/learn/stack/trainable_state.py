"""A model's state, and what of it is trained."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ModelState = dict[str, Tensor]
"""Tensors by name in `state_dict` order, detached. In a *stacked* state each has a leading dimension of clients."""


def model_state(module: nn.Module) -> ModelState:
    """A copy of everything that a module keeps: parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def repeat_state(state: Mapping[str, Tensor], clients: int) -> ModelState:
    """A stacked state in which every client starts from the same model."""
    return {name: tensor.repeat(clients, *[1] * tensor.dim()) for name, tensor in state.items()}


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """Which entries of a state are trained, which only carried along, and which are second names of another."""

    names: tuple[str, ...]
    trained: tuple[str, ...]
    carried: tuple[str, ...]
    aliases: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module) -> "StateLayout":
        names = tuple(module.state_dict())
        first_name: dict[int, str] = {}
        for name, tensor in module.state_dict(keep_vars=True).items():
            first_name.setdefault(id(tensor), name)
        tensors = module.state_dict(keep_vars=True)
        aliases = {name: first_name[id(tensors[name])] for name in names if first_name[id(tensors[name])] != name}
        own = [name for name in names if name not in aliases]
        return cls(
            names=names,
            trained=tuple(name for name in own if tensors[name].requires_grad),
            carried=tuple(name for name in own if not tensors[name].requires_grad),
            aliases=aliases,
        )

    def tied(self, state: ModelState) -> ModelState:
        """The state with second names meaning what the first ones do."""
        return state | {name: state[first] for name, first in self.aliases.items()}

    def join(self, trained: list[Tensor], carried: list[Tensor]) -> ModelState:
        """The full state in `state_dict` order, second names included."""
        parts = dict(zip((*self.trained, *self.carried), (*trained, *carried), strict=True))
        return {name: parts[self.aliases.get(name, name)] for name in self.names}


def take_clients(states: Mapping[str, Tensor], order: Tensor) -> ModelState:
    """The rows of some clients, in the order given."""
    return {name: torch.index_select(tensor, 0, order) for name, tensor in states.items()}


def split_clients(folded: Tensor, clients: int) -> Tensor:
    """[K·B, ...] seen as [K, B, ...]."""
    return folded.reshape(clients, len(folded) // clients, *folded.shape[1:])
