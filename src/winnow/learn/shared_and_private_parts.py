"""Models in two parts: one that all clients share, and one that each keeps to itself."""

from fnmatch import fnmatchcase
from itertools import takewhile

from torch import nn

from winnow.core import ConfigError, suggest


def last_layer(module: nn.Module) -> str:
    """The last layer that has parameters of its own: what a classifier's head usually is."""
    *_, last = (path for path, layer in module.named_modules() if list(layer.parameters(recurse=False)))
    return str(last)


def entries_from_layer(module: nn.Module, layer: str) -> frozenset[str]:
    """The entries of a state that belong to a layer and to all that come after it, in the order of their writing."""
    paths = [path for path, _ in module.named_modules() if path]
    if layer not in paths:
        raise ConfigError(f"client.cut: the model has no layer {layer!r}; {suggest(layer, paths)}")
    before = set(takewhile(lambda path: path != layer, paths))
    return frozenset(
        name
        for name in module.state_dict()
        if name.startswith(f"{layer}.") or (name.rpartition(".")[0] not in before and "." in name)
    )


def entries_matching(module: nn.Module, patterns: tuple[str, ...]) -> frozenset[str]:
    """The entries whose names match any of the patterns (`fc2.*`); each must match something."""
    names = list(module.state_dict())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"client.names: no entry of the model matches {pattern!r}; {suggest(pattern, names)}")
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))
