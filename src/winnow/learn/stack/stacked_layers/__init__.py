"""Stacked forms of layers that have parameters or buffers of their own."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from winnow.learn.stack.head_with_input import HeadWithInput
from winnow.learn.stack.stacked_layers.base import FoldedShape, StackedLayer, UnstackableError
from winnow.learn.stack.stacked_layers.convolution import StackedConvolution, StackedTransposedConvolution
from winnow.learn.stack.stacked_layers.dense_and_embedding import (
    StackedEmbedding,
    StackedHeadWithInput,
    StackedLinear,
    StackedPRelu,
)
from winnow.learn.stack.stacked_layers.normalisation import (
    StackedBatchNorm,
    StackedGroupNorm,
    StackedInstanceNorm,
    StackedLayerNorm,
)
from winnow.learn.stack.stacked_layers.recurrent import StackedGru, StackedLstm, StackedRnn
from winnow.learn.stack.trainable_state import StateLayout

__all__ = ["FoldedShape", "StackedLayer", "UnstackableError", "stack_layers"]

_TWINS: dict[type[nn.Module], Callable[[Any, FoldedShape], StackedLayer]] = {
    nn.Linear: StackedLinear,
    HeadWithInput: StackedHeadWithInput,
    nn.Embedding: StackedEmbedding,
    nn.PReLU: StackedPRelu,
    nn.Conv1d: StackedConvolution,
    nn.Conv2d: StackedConvolution,
    nn.Conv3d: StackedConvolution,
    nn.ConvTranspose1d: StackedTransposedConvolution,
    nn.ConvTranspose2d: StackedTransposedConvolution,
    nn.ConvTranspose3d: StackedTransposedConvolution,
    nn.BatchNorm1d: StackedBatchNorm,
    nn.BatchNorm2d: StackedBatchNorm,
    nn.BatchNorm3d: StackedBatchNorm,
    nn.GroupNorm: StackedGroupNorm,
    nn.InstanceNorm1d: StackedInstanceNorm,
    nn.InstanceNorm2d: StackedInstanceNorm,
    nn.InstanceNorm3d: StackedInstanceNorm,
    nn.LayerNorm: StackedLayerNorm,
    nn.LSTM: StackedLstm,
    nn.GRU: StackedGru,
    nn.RNN: StackedRnn,
}


def stack_layers(module: nn.Module, fold: FoldedShape) -> nn.Module:
    """A copy of a model in which every layer with parameters or buffers is its stacked twin."""
    aliases = StateLayout.of(module).aliases
    if aliases:
        second, first = next(iter(aliases.items()))
        raise UnstackableError(f"'{second}' and '{first}' share one tensor")
    model = copy.deepcopy(module)
    for name, layer in list(model.named_modules()):
        if any(True for _ in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            model = _replace(model, name, _twin_of(name, layer, fold))
    return model


def _twin_of(name: str, layer: nn.Module, fold: FoldedShape) -> StackedLayer:
    where = f"layer '{name}' ({type(layer).__name__})" if name else f"the model itself ({type(layer).__name__})"
    if type(layer) not in _TWINS:  # a subclass may compute something else, so it does not count as its base
        raise UnstackableError(f"{where} has parameters or buffers, and there is no stacked version of it")
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise UnstackableError(f"{where} has forward hooks")
    twin = _TWINS[type(layer)](layer, fold)
    return twin.train(layer.training)


def _replace(model: nn.Module, name: str, twin: StackedLayer) -> nn.Module:
    if not name:
        return twin
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, twin)
    return model
