"""A model whose first layers stand still: what they make of a sample is computed once, and the rest trained on that.

FedRep trains heads for ten epochs on a body that does not move; going through the body in every step would be most of
the work, all of it in vain.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.stack.client_tensors import BLOCK_BYTES, Indices, TensorData
from winnow.learn.stack.execution import Execution
from winnow.learn.stack.execution_choice import choose_execution
from winnow.learn.stack.layer_sequence import SequenceLayer, find_layer_sequence
from winnow.learn.stack.local_start import LocalStart
from winnow.learn.stack.model_states import ModelState
from winnow.learn.stack.precision import autocast_context

TRIAL_SAMPLES = 4
"""Samples with which the ending's execution is tried out."""

PER_SAMPLE_LAYERS = frozenset(
    {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm, nn.Flatten}
    | {nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}
    | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus}
)
"""Layers that make of a sample always the same, whatever else is in the batch: no noise, no batch statistics."""


@dataclass(kw_only=True)
class TrainableSuffix:
    """The layers from the first that moves on, as a model of their own, and the beginning before them."""

    beginning: nn.Sequential
    beginning_names: dict[str, str]
    """The names of entries in the part, and what the model calls them."""
    execution: Execution
    names: dict[str, str]
    _made: TensorData | None = field(default=None, init=False)

    def departure(self, whole: LocalStart) -> LocalStart:
        """Where the ending departs from."""
        return LocalStart(
            states=_renamed(whole.states, self.names),
            pull=whole.pull,
            anchor=whole.anchor and _renamed(whole.anchor, self.names),
            drift=whole.drift and _renamed(whole.drift, self.names),
            moving=frozenset(name for name, known_as in self.names.items() if known_as in (whole.moving or ())),
        )

    @torch.no_grad()
    def samples(self, whole: LocalStart, data: TensorData, clients: Indices) -> TensorData:
        """The data with what the beginning makes of these clients' samples in the samples' place.

        The tensor is used again as long as the data are the same: graphs of CUDA read from where it is.
        """
        state = {name: whole.states[known_as][0] for name, known_as in self.beginning_names.items()}
        if self._made is None or self._made.y is not data.y:
            like = self._features(state, data.x[:1])
            self._made = replace(data, x=like.new_empty(len(data.x), *like.shape[1:]))
        features = self._made.x
        together = max(1, BLOCK_BYTES // data.x[:1].nbytes)
        for client in clients.tolist():  # one by one: how libraries round depends on what else is in a product
            for rows in torch.split(torch.as_tensor(data.rows_of(client)).to(data.device), together):
                features[rows] = self._features(state, data.x[rows])
        return replace(data, x=features)

    def states(self, whole: LocalStart, trained: ModelState, clients: int) -> ModelState:
        """The whole model's states, [K, ...]."""
        ending = {known_as: trained[name] for name, known_as in self.names.items()}
        return {
            name: ending.get(name, tensor.expand(clients, *tensor.shape[1:])) for name, tensor in whole.states.items()
        }

    def _features(self, state: ModelState, x: Tensor) -> Tensor:
        with autocast_context(self.execution.precision, x.device):
            features: Tensor = torch.func.functional_call(self.beginning, state, (x,))
        return features.to(torch.promote_types(features.dtype, torch.float32))


class _Case(NamedTuple):
    """What decides about an ending besides the execution."""

    moving: frozenset[str]
    sample: torch.Size


_FOUND: WeakKeyDictionary[Execution, dict[_Case, TrainableSuffix | None]] = WeakKeyDictionary()


def find_trainable_suffix(execution: Execution, departure: LocalStart, data: TensorData) -> TrainableSuffix | None:
    """The ending that alone need be trained; None where the whole model must be.

    Everything before it must be the same for all clients.
    """
    if departure.moving is None or not len(data.x):
        return None
    found = _FOUND.setdefault(execution, {})
    case = _Case(departure.moving, data.x.shape[1:])
    if case not in found:
        found[case] = _ending(execution, departure.moving, *data.few(TRIAL_SAMPLES))
    ending = found[case]
    shared = ending and all(len(departure.states[name]) == 1 for name in ending.beginning_names.values())
    return ending if shared else None


def _ending(execution: Execution, moving: frozenset[str], x: Tensor, y: Tensor) -> TrainableSuffix | None:
    parts = _parted(execution, moving)
    if parts is None:
        return None
    first, last = (nn.Sequential(*(piece.layer for piece in part)) for part in parts)
    with torch.no_grad(), autocast_context(execution.precision, x.device):
        features = first(x)
    if prod(features.shape) > prod(x.shape):  # it would take more memory than the samples themselves
        return None
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    try:
        chosen = choose_execution(
            last, features, y, execution.loss, execution.name, execution.threads, precision=execution.precision
        )
    except ModelError:  # the whole can be trained this way, so it is
        return None
    return TrainableSuffix(beginning=first, beginning_names=_names(parts[0]), execution=chosen, names=_names(parts[1]))


def _parted(execution: Execution, moving: frozenset[str]) -> tuple[list[SequenceLayer], list[SequenceLayer]] | None:
    """The layers before the first that moves, and the others; None where the former would not do by themselves."""
    line, layout = find_layer_sequence(execution.module), execution.layout
    moved = moving & frozenset(layout.trained)
    if line is None or layout.aliases or len({id(piece.layer) for piece in line}) < len(line):
        return None
    first = next((place for place, piece in enumerate(line) if moved & set(_names([piece]).values())), 0)
    before, after = line[:first], line[first:]
    alike = all(_by_sample(piece.layer) for piece in before)
    return (before, after) if alike and _names(before) and moved <= set(_names(after).values()) else None


def _by_sample(layer: nn.Module) -> bool:
    return type(layer) in PER_SAMPLE_LAYERS and getattr(layer, "start_dim", 1) >= 1


def _names(pieces: Iterable[SequenceLayer]) -> dict[str, str]:
    """What the layers' entries are called in a row of these layers, and in the model."""
    return {
        f"{place}.{name}": f"{piece.path}.{name}"
        for place, piece in enumerate(pieces)
        for name in piece.layer.state_dict()
    }


def _renamed(states: ModelState, names: dict[str, str]) -> ModelState:
    return {name: states[known_as] for name, known_as in names.items() if known_as in states}
