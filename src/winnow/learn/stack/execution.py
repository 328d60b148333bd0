"""The ways to train a cohort, as seen by the trainer."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.stack.data import Indices
from winnow.learn.stack.state import Layout, ModelState


class Batch(NamedTuple):
    """One step's samples of K clients, folded: client k's are the rows k·B to (k + 1)·B, padded at the end."""

    x: Tensor  # [K·B, ...]
    y: Tensor  # [K·B, ...]
    weight: Tensor  # [K, B], one over the client's batch size, 0 for padding
    sizes: Indices  # [K]
    full: bool  # no client's batch is padded


class Cohort(Protocol):
    """K clients' parameters, ready for one step after another."""

    def gradients(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Gradients of each client's mean loss, contiguous [K, ...] like the parameters, and the losses [K, B].

        Buffers (batch statistics) are brought up to date in place. A parameter without influence has gradient 0.
        """
        ...


class Execution(Protocol):
    """A model and a loss, with one way of computing K clients' steps."""

    @property
    def name(self) -> str:
        """stacked, vmap or loop."""
        ...

    @property
    def notice(self) -> str:
        """Why no faster way is used; empty if there is none."""
        ...

    @property
    def module(self) -> nn.Module:
        """The plain model; its parameters are scratch space."""
        ...

    @property
    def layout(self) -> Layout: ...

    def cohort(self, trained: list[Tensor], carried: list[Tensor]) -> Cohort:
        """Bind stacked tensors, in the layout's order, until the execution is used for something else.

        Changes made to them in place are seen by the next step.
        """
        ...

    def outputs(self, states: ModelState, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Outputs [K, B, ...] of K models in evaluation mode for x [K, B, ...]; the mask [K, B] marks padding False."""
        ...

    def observe(self, states: ModelState, x: Tensor, mask: Tensor | None, layer: str) -> tuple[Tensor, Tensor]:
        """As `outputs`, with the outputs [K, B, ...] of the named submodule beside them.

        A recurrent layer gives the last hidden state of its last level.
        """
        ...


class Capture:
    """Keeps what a submodule returned in the last forward pass while the context is open."""

    def __init__(self, module: nn.Module, layer: str) -> None:
        try:
            self._target = module.get_submodule(layer)
        except AttributeError as error:
            known = ", ".join(name for name, _ in module.named_modules() if name)
            raise ModelError(f"the model has no layer '{layer}'; choose one of {known}") from error
        self._layer = layer
        self._value: object = None

    def __enter__(self) -> "Capture":
        self._hook = self._target.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _keep(self, _module: nn.Module, _inputs: object, output: object) -> None:
        self._value = output

    def samples(self, count: int) -> Tensor:
        """The captured outputs [count, ...]."""
        value = self._value
        if isinstance(value, tuple) and getattr(self._target, "recurrent", isinstance(self._target, nn.RNNBase)):
            value = _last_hidden(value[1], directions=2 if self._target.bidirectional else 1)
        while isinstance(value, tuple | list) and value:
            value = value[0]
        if not isinstance(value, Tensor):
            raise ModelError(f"layer '{self._layer}' was not run or gives no tensor; profile another layer")
        if value.shape[:1] != (count,):
            shape = tuple(value.shape)
            raise ModelError(
                f"layer '{self._layer}' gives {shape} for {count} samples; profile a layer that gives one row a sample"
            )
        return value


def _last_hidden(hidden: Tensor | tuple[Tensor, Tensor], *, directions: int) -> Tensor:
    """h_T of the last level [n, d·directions] from h_n [levels·directions, n, d], or from an LSTM's (h_n, c_n)."""
    state = hidden[0] if isinstance(hidden, tuple) else hidden
    return torch.cat(state[-directions:].unbind(), dim=-1)


def smallest_batch(module: nn.Module) -> int:
    """Batch normalisation has no variance to learn from in a single sample."""
    normalised = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    return 2 if normalised else 1
