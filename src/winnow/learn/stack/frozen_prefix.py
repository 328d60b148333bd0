"""A model whose first layers are frozen: their outputs are computed once, and the other layers are trained on these.

FedRep trains heads for ten epochs on a frozen body; most of the work would be to go through the body in every step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.stack.execution_choice import choose_execution
from winnow.learn.stack.execution_interface import Execution
from winnow.learn.stack.flat_client_data import BLOCK_BYTES, Indices, TensorData
from winnow.learn.stack.layer_sequence import SequenceLayer, find_layer_sequence
from winnow.learn.stack.local_training_start import LocalStart
from winnow.learn.stack.precision import autocast_context
from winnow.learn.stack.trainable_state import ModelState
from winnow.learn.stack.user_training_execution import StepExecution

TRIAL_SAMPLES = 4
"""Samples with which the suffix's execution is tried out."""

PER_SAMPLE_LAYERS = frozenset(
    {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm, nn.Flatten}
    | {nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d}
    | {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus}
)
"""Layers whose output for a sample does not depend on the batch: no noise, no batch statistics."""


@dataclass(kw_only=True)
class TrainableSuffix:
    """The layers from the first trainable one on, as a model of their own, and the frozen layers before them."""

    frozen_prefix: nn.Sequential
    prefix_names: dict[str, str]
    """The names of entries in the prefix, and in the whole model."""
    execution: Execution
    names: dict[str, str]
    _features_data: TensorData | None = field(default=None, init=False)

    def local_start(self, whole: LocalStart) -> LocalStart:
        """Where the training of the suffix starts."""
        return LocalStart(
            states=_renamed(whole.states, self.names),
            proximal_weight=whole.proximal_weight,
            anchor=whole.anchor and _renamed(whole.anchor, self.names),
            gradient_offset=whole.gradient_offset and _renamed(whole.gradient_offset, self.names),
            trainable=frozenset(name for name, known_as in self.names.items() if known_as in (whole.trainable or ())),
        )

    @torch.no_grad()
    def prefix_features(self, whole: LocalStart, data: TensorData, clients: Indices) -> TensorData:
        """The data with the prefix's outputs in the place of these clients' samples.

        The tensor is reused as long as the data are the same, because CUDA graphs read from its address.
        """
        state = {name: whole.states[known_as][0] for name, known_as in self.prefix_names.items()}
        if self._features_data is None or self._features_data.y is not data.y:
            like = self._features(state, data.x[:1])
            self._features_data = replace(data, x=like.new_empty(len(data.x), *like.shape[1:]))
        features = self._features_data.x
        together = max(1, BLOCK_BYTES // data.x[:1].nbytes)
        for client in clients.tolist():  # one by one: how libraries round depends on what else is in a product
            for rows in torch.split(torch.as_tensor(data.rows_of(client)).to(data.device), together):
                features[rows] = self._features(state, data.x[rows])
        return replace(data, x=features)

    def full_states(self, whole: LocalStart, trained: ModelState, clients: int) -> ModelState:
        """The whole model's states, [K, ...]."""
        suffix = {known_as: trained[name] for name, known_as in self.names.items()}
        return {
            name: suffix.get(name, tensor.expand(clients, *tensor.shape[1:])) for name, tensor in whole.states.items()
        }

    def _features(self, state: ModelState, x: Tensor) -> Tensor:
        with autocast_context(self.execution.precision, x.device):
            features: Tensor = torch.func.functional_call(self.frozen_prefix, state, (x,))
        return features.to(torch.promote_types(features.dtype, torch.float32))


class _Case(NamedTuple):
    """What decides about a suffix besides the execution."""

    trainable: frozenset[str]
    sample: torch.Size


_FOUND: WeakKeyDictionary[Execution, dict[_Case, TrainableSuffix | None]] = WeakKeyDictionary()


def find_trainable_suffix(execution: Execution, local_start: LocalStart, data: TensorData) -> TrainableSuffix | None:
    """The part of the model that is trained; None where that is the whole model.

    The layers before it must be the same for all clients.
    """
    if local_start.trainable is None or not len(data.x) or isinstance(execution, StepExecution):
        return None  # a step of the user's own calls the whole model
    found = _FOUND.setdefault(execution, {})
    case = _Case(local_start.trainable, data.x.shape[1:])
    if case not in found:
        found[case] = _find_suffix(execution, local_start.trainable, *data.first_samples(TRIAL_SAMPLES))
    suffix = found[case]
    shared = suffix and all(len(local_start.states[name]) == 1 for name in suffix.prefix_names.values())
    return suffix if shared else None


def _find_suffix(execution: Execution, trainable: frozenset[str], x: Tensor, y: Tensor) -> TrainableSuffix | None:
    parts = _split_layers(execution, trainable)
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
    except ModelError:  # then the whole model is trained
        return None
    return TrainableSuffix(frozen_prefix=first, prefix_names=_names(parts[0]), execution=chosen, names=_names(parts[1]))


def _split_layers(
    execution: Execution, trainable: frozenset[str]
) -> tuple[list[SequenceLayer], list[SequenceLayer]] | None:
    """The layers before the first trainable one, and the others; None where the model cannot be split like that."""
    line, layout = find_layer_sequence(execution.module), execution.layout
    moved = trainable & frozenset(layout.trained)
    if line is None or layout.aliases or len({id(piece.layer) for piece in line}) < len(line):
        return None
    first = next((place for place, piece in enumerate(line) if moved & set(_names([piece]).values())), 0)
    before, after = line[:first], line[first:]
    alike = all(_by_sample(piece.layer) for piece in before)
    return (before, after) if alike and _names(before) and moved <= set(_names(after).values()) else None


def _by_sample(layer: nn.Module) -> bool:
    return type(layer) in PER_SAMPLE_LAYERS and getattr(layer, "start_dim", 1) >= 1


def _names(pieces: Iterable[SequenceLayer]) -> dict[str, str]:
    """The names of the layers' entries in a sequence of these layers, and in the model."""
    return {
        f"{place}.{name}": f"{piece.path}.{name}"
        for place, piece in enumerate(pieces)
        for name in piece.layer.state_dict()
    }


def _renamed(states: ModelState, names: dict[str, str]) -> ModelState:
    return {name: states[known_as] for name, known_as in names.items() if known_as in states}
