"""The layer of a model that is profiled: which one it is, and its output as one value per sample and element."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from winnow.core import ModelError, suggest

RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
PROFILABLE_LAYERS = (nn.Linear, *CONVOLUTIONS, *RECURRENT)
FEATURES_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding)


def fuse_outputs(output: object, layer: nn.Module) -> Tensor:
    """A layer's output as one value per sample and element, [n, q].

    Dense layers give their units. Convolutions and residual blocks are summed over each channel's map (equation 24),
    recurrent layers over their final hidden state (equation 21), so they give channels and a single element.
    """
    if isinstance(layer, RECURRENT):
        return _final_hidden(output, 2 if layer.bidirectional else 1).sum(dim=(0, 2)).unsqueeze(1)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"a {type(layer).__name__} cannot be profiled: it gives a {type(output).__name__}, not a tensor"
        )
    if output.ndim <= 2:
        return output.reshape(len(output), -1)
    if isinstance(layer, FEATURES_LAST):
        return output.flatten(1, -2).sum(dim=1)
    return output.flatten(2).sum(dim=2)


def _final_hidden(output: object, directions: int) -> Tensor:
    """h_T of the last level, [directions, n, d], from what a recurrent module returns."""
    hidden = output[1]  # type: ignore[index]  # (outputs, h_n) or (outputs, (h_n, c_n)), as torch documents
    state = hidden[0] if isinstance(hidden, tuple) else hidden
    return state[-directions:]  # type: ignore[no-any-return]  # a tensor [levels · directions, n, d]


def default_layer(module: nn.Module, x: Tensor) -> str:
    """The layer to profile unless told otherwise, among those that a pass over x runs: the first hidden dense layer,
    else the first convolution or recurrent layer, else the first dense layer (which is then the output).
    """
    ran = [name for name in _layers_run(module, x) if isinstance(module.get_submodule(name), PROFILABLE_LAYERS)]
    dense = [name for name in ran if isinstance(module.get_submodule(name), nn.Linear)]
    if len(dense) > 1:
        return dense[0]
    others = [name for name in ran if name not in dense]
    if not ran:
        raise ModelError("the model has no dense, convolutional or recurrent layer to profile; set select.layer")
    return (others or dense)[0]


@torch.no_grad()
def _layers_run(module: nn.Module, x: Tensor) -> list[str]:
    """The names of all layers in the order in which a pass runs them."""
    ran: list[str] = []
    probe = deepcopy(module).eval()
    for name, layer in probe.named_modules():
        layer.register_forward_hook(lambda *_, name=name: ran.append(name))
    try:
        probe(x)
    except Exception:  # whether the model takes these samples is checked, and said, when it is about to be trained
        return [name for name, _ in module.named_modules()]
    return list(dict.fromkeys(ran))


def check_layer(module: nn.Module, layer: str) -> str:
    """The layer's name, if the model has it."""
    names = [name for name, _ in module.named_modules() if name]
    if layer not in names:
        raise ModelError(f"select.layer: the model has no layer {layer!r}; {suggest(layer, names)}")
    return layer
