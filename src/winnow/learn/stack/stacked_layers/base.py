"""What all stacked layers share.

Activations stay *folded*: [K·B, ...], the samples of K clients one after another. Code without parameters runs on them
unchanged, and only layers with parameters of their own have a *twin* that knows which rows belong to which client.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn


@dataclass
class FoldedShape:
    """How the samples of the current pass are folded; shared by all twins of a model."""

    clients: int = 1
    mask: Tensor | None = None  # [K, B], False for padding; None without padding


class UnstackableError(Exception):
    """A layer has no stacked form; the message says which and why."""


class StackedLayer(nn.Module):
    """A layer whose parameters and buffers have a leading dimension of clients. They are set from outside."""

    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(self, plain: nn.Module, fold: FoldedShape) -> None:
        super().__init__()
        self.fold = fold
        for name in self.tensors:
            setattr(self, name, None)
