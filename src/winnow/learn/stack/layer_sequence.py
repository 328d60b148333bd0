"""Models that are a line of layers, each fed by the one before it, as the modules that they amount to."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx, nn
from torch.nn import functional


@dataclass(frozen=True)
class SequenceLayer:
    """A layer of a line. One that the model calls as a function has no path, and is the module that does the same."""

    layer: nn.Module
    path: str = ""

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The layer's parameters, by their names in the model."""
        return list(self.layer.named_parameters(prefix=self.path))


def find_layer_sequence(module: nn.Module) -> list[SequenceLayer] | None:
    """The line that a model is, without what does nothing; None if it is none, or calls a function not known here."""
    if not list(module.children()):
        return [SequenceLayer(module)] if type(module).__module__.startswith("torch.nn.") else None
    try:
        nodes = list(fx.symbolic_trace(module).graph.nodes)
    except Exception:  # a model that cannot be traced may fail in any way, and is no line
        return None
    if any(after.all_input_nodes != [before] for before, after in pairwise(nodes)):
        return None
    pieces = [_piece(module, node) for node in nodes[1:-1]]
    known = [piece for piece in pieces if piece is not None]
    return [piece for piece in known if type(piece.layer) is not nn.Identity] if len(known) == len(pieces) else None


def _piece(module: nn.Module, node: fx.Node) -> SequenceLayer | None:
    if node.op == "call_module":
        return SequenceLayer(module.get_submodule(str(node.target)), str(node.target))
    if node.target in _ACTIVATIONS:
        return SequenceLayer(_ACTIVATIONS[node.target]())
    settings = [setting for setting in node.args if not isinstance(setting, fx.Node)]
    maker = _MAKERS.get(node.target)
    return None if maker is None else SequenceLayer(maker(*settings, **node.kwargs))


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    """The function begins with the first dimension unless told otherwise, the module with the second."""
    return nn.Flatten(start_dim, end_dim)


_ACTIVATIONS: dict[object, type[nn.Module]] = {
    **dict.fromkeys((torch.relu, functional.relu, "relu"), nn.ReLU),
    **dict.fromkeys((torch.tanh, functional.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((torch.sigmoid, functional.sigmoid, "sigmoid"), nn.Sigmoid),
}
_MAKERS: dict[object, Callable[..., nn.Module]] = {
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    functional.max_pool2d: nn.MaxPool2d,
    functional.avg_pool2d: nn.AvgPool2d,
}
