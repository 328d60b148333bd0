"""A user's module in the form that training knows: one tensor goes in, one tensor with one row a sample comes out.

Data with several inputs come packed into one array, and a model may return a dict, a dataclass or a tuple.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.core.errors import first_line
from winnow.data.preprocessing import InputSpec

ModelInputs: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""What a user's module takes: one tensor, or several by position or by name."""

PREDICTION = "logits"
"""Of several outputs the one of this name is the prediction, unless another is named."""


class AdaptedModel(nn.Module):
    """Unpacks the inputs, calls the module and picks its output. Layers and parameters keep the module's names."""

    adapted: nn.Module

    def __init__(self, module: nn.Module, inputs: Sequence[InputSpec] = (), output: str | None = None) -> None:
        super().__init__()
        self.inputs, self.output = tuple(inputs), output
        self.__dict__["adapted"] = module  # no child, or every name would begin with "adapted."
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[shared] = module.__dict__[shared]

    def forward(self, packed: Tensor) -> Tensor:
        outputs = call_model(self.adapted, unpack_inputs(self.inputs, packed))
        if isinstance(outputs, Tensor):
            return outputs
        picked: Tensor = named_outputs(outputs)[self.output or PREDICTION]
        return picked

    def train(self, mode: bool = True) -> Self:
        self.adapted.train(mode)
        self.training = mode
        return self


def adapt_model(module: nn.Module, inputs: Sequence[InputSpec], output: str | None, x: Tensor) -> nn.Module:
    """The module itself if it takes and returns one tensor, else adapted. Tried on samples as they are packed."""
    try:
        with torch.no_grad():
            outputs = call_model(deepcopy(module).eval(), unpack_inputs(inputs, x))
    except Exception as error:  # a user's model may fail in any way
        if not inputs:
            return module  # explained where its execution is chosen
        raise ModelError(f"the model does not accept {_inputs_text(inputs)}: {first_line(error)}") from error
    if isinstance(outputs, Tensor):
        if output is not None:
            raise ModelError(f"model.output = {output!r}, but the model returns a single tensor; omit it")
        return AdaptedModel(module, inputs) if inputs else module
    return AdaptedModel(module, inputs, _prediction(outputs, output, len(x)))


def own_module(module: nn.Module) -> nn.Module:
    """The user's own module."""
    return module.adapted if isinstance(module, AdaptedModel) else module


def model_inputs(module: nn.Module, x: Tensor) -> ModelInputs:
    """Samples in the form in which the user's own module takes them."""
    return unpack_inputs(module.inputs, x) if isinstance(module, AdaptedModel) else x


def call_model(module: nn.Module, inputs: ModelInputs) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def unpack_inputs(inputs: Sequence[InputSpec], packed: Tensor) -> ModelInputs:
    """The inputs that lie side by side in [n, total], by name where they have names."""
    if not inputs:
        return packed
    beside = torch.split(packed, [each.size for each in inputs], dim=1)
    rows = packed.shape[0]  # not len(), which an exporter would take for a constant
    parts = [_as_kind(each, part.reshape(rows, *each.shape)) for each, part in zip(inputs, beside, strict=True)]
    names = [each.name for each in inputs]
    return {str(name): part for name, part in zip(names, parts, strict=True)} if all(names) else tuple(parts)


def _as_kind(spec: InputSpec, part: Tensor) -> Tensor:
    return part.long() if spec.kind == "token" else part if part.is_floating_point() else part.float()


def named_outputs(outputs: Any) -> dict[str, Any]:
    """What a model returned, by name; by position where there are no names."""
    if isinstance(outputs, Mapping):
        return {str(name): value for name, value in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    if isinstance(outputs, tuple | list):
        return {str(place): value for place, value in enumerate(outputs)}
    if is_dataclass(outputs):
        return {each.name: getattr(outputs, each.name) for each in fields(outputs)}
    return {}


def _prediction(outputs: Any, asked: str | None, samples: int) -> str:
    """The name of the output with which a model predicts."""
    named = named_outputs(outputs)
    if not named:
        raise ModelError(
            f"the model returned {type(outputs).__name__}; it must return a tensor, or tensors in a dict, a dataclass "
            "or a tuple"
        )
    rows = [name for name, value in named.items() if _one_row_a_sample(value, samples)]
    choices = ", ".join(f'"{name}"' for name in rows) or "none"
    if asked is not None:
        if asked not in rows:
            raise ModelError(
                f"model.output = {asked!r} is not an output with one row per sample; the model returns: {choices}"
            )
        return asked
    if PREDICTION in rows:
        return PREDICTION
    if len(rows) != 1:
        raise ModelError(
            f"which output of the model is its prediction? One row per sample have: {choices}; "
            f'set output="{rows[0] if rows else PREDICTION}"'
        )
    return rows[0]


def _one_row_a_sample(value: Any, samples: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == samples


def _inputs_text(inputs: Sequence[InputSpec]) -> str:
    shapes = (f"{each.name or place} {list(each.shape)} ({each.kind}s)" for place, each in enumerate(inputs))
    return f"inputs of the shapes {', '.join(shapes)}"
