"""Stacked forms of layers that have parameters or buffers of their own."""

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from winnow.learn.stack.state import Layout
from winnow.learn.stack.twins.base import Fold, Twin, UnstackableError
from winnow.learn.stack.twins.convolution import ConvolutionTwin, TransposedConvolutionTwin
from winnow.learn.stack.twins.dense import EmbeddingTwin, LinearTwin, PReluTwin
from winnow.learn.stack.twins.normalisation import BatchNormTwin, GroupNormTwin, InstanceNormTwin, LayerNormTwin
from winnow.learn.stack.twins.recurrent import ElmanTwin, GruTwin, LstmTwin

__all__ = ["Fold", "Twin", "UnstackableError", "stacked_twin"]

_TWINS: dict[type[nn.Module], Callable[[Any, Fold], Twin]] = {
    nn.Linear: LinearTwin,
    nn.Embedding: EmbeddingTwin,
    nn.PReLU: PReluTwin,
    nn.Conv1d: ConvolutionTwin,
    nn.Conv2d: ConvolutionTwin,
    nn.Conv3d: ConvolutionTwin,
    nn.ConvTranspose1d: TransposedConvolutionTwin,
    nn.ConvTranspose2d: TransposedConvolutionTwin,
    nn.ConvTranspose3d: TransposedConvolutionTwin,
    nn.BatchNorm1d: BatchNormTwin,
    nn.BatchNorm2d: BatchNormTwin,
    nn.BatchNorm3d: BatchNormTwin,
    nn.GroupNorm: GroupNormTwin,
    nn.InstanceNorm1d: InstanceNormTwin,
    nn.InstanceNorm2d: InstanceNormTwin,
    nn.InstanceNorm3d: InstanceNormTwin,
    nn.LayerNorm: LayerNormTwin,
    nn.LSTM: LstmTwin,
    nn.GRU: GruTwin,
    nn.RNN: ElmanTwin,
}


def stacked_twin(module: nn.Module, fold: Fold) -> nn.Module:
    """A copy of a model in which every layer with parameters or buffers is its stacked twin."""
    aliases = Layout.of(module).aliases
    if aliases:
        second, first = next(iter(aliases.items()))
        raise UnstackableError(f"'{second}' and '{first}' share one tensor")
    model = copy.deepcopy(module)
    for name, layer in list(model.named_modules()):
        if any(True for _ in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
            model = _replace(model, name, _twin_of(name, layer, fold))
    return model


def _twin_of(name: str, layer: nn.Module, fold: Fold) -> Twin:
    where = f"layer '{name}' ({type(layer).__name__})" if name else f"the model itself ({type(layer).__name__})"
    if type(layer) not in _TWINS:  # a subclass may compute something else, so it does not count as its base
        raise UnstackableError(f"{where} has parameters or buffers of its own and no stacked form")
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise UnstackableError(f"{where} has forward hooks")
    twin = _TWINS[type(layer)](layer, fold)
    return twin.train(layer.training)


def _replace(model: nn.Module, name: str, twin: Twin) -> nn.Module:
    if not name:
        return twin
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, twin)
    return model
