"""A model with further heads, which a method trains beside it: projections, a predictor, a domain classifier.

They read the features that the model's last dense layer reads. The model itself stays what it was: it predicts, is
evaluated, saved and used as if nothing were beside it.
"""

from copy import deepcopy
from typing import Protocol

import torch
from torch import Tensor, nn

from winnow.core import ModelError, derive
from winnow.learn.stack import Loss, ModelState
from winnow.learn.stack.head_with_input import HeadWithInput

MODEL, BESIDE = "model.", "beside."
"""What the names of the model's own tensors begin with, and those of the further heads."""


class MakesHeads(Protocol):
    """A method that may have heads of its own."""

    def heads(self, features: int, outputs: int) -> nn.Module | None:
        """A module that makes [n, width] of features [n, features] and predictions [n, outputs]; None for none."""
        ...


class ExtendedModel(nn.Module):
    """`model`, whose last layer is a `HeadWithInput`, and the heads `beside` it. It gives predictions; in the form that
    is trained also, behind them, what the heads make of features and predictions.
    """

    def __init__(self, model: nn.Module, beside: nn.Module, outputs: int) -> None:
        super().__init__()
        self.model, self.beside, self.outputs, self.shows_heads = model, beside, outputs, False

    def forward(self, x: Tensor) -> Tensor:
        both = self.model(x)
        predictions, features = both[:, : self.outputs], both[:, self.outputs :]
        if not self.shows_heads:
            shown: Tensor = predictions
            return shown
        return torch.cat([predictions, self.beside(features, predictions)], 1)

    def trained_form(self) -> "ExtendedModel":
        form = deepcopy(self)
        form.shows_heads = True
        return form

    def plain_model(self) -> nn.Module:
        """The model as it was, with the parameters that it has now."""
        model = deepcopy(self.model)
        path = next(path for path, layer in model.named_modules() if isinstance(layer, HeadWithInput))
        head = model.get_submodule(path)
        assert isinstance(head, HeadWithInput)
        return _with_head(model, path, _as_kind(head, nn.Linear))


def extend_model(
    module: nn.Module, method: MakesHeads, x: Tensor, outputs: int | None, seed: int, name: str
) -> nn.Module:
    """The module with the heads that the method asks for, drawn from the seed; itself where it asks for none."""
    path = None if outputs is None else head_path(module, outputs)
    if path is None:
        if method.heads(1, 1) is None:
            return module
        wanted = "classes to predict" if outputs is None else f"a model that ends in a dense layer of {outputs} outputs"
        raise ModelError(f"{name} needs {wanted}, before which it takes the features")
    layer = module.get_submodule(path)
    assert isinstance(layer, nn.Linear)
    with torch.random.fork_rng([]):
        torch.manual_seed(derive(seed, "heads") % 2**63)
        beside = method.heads(layer.in_features, layer.out_features)
    if beside is None:
        return module
    extended = ExtendedModel(
        _with_head(deepcopy(module), path, _as_kind(layer, HeadWithInput)), beside.to(x.device), layer.out_features
    )
    _check_same(module, extended, x, name)
    return extended


def head_path(module: nn.Module, outputs: int) -> str | None:
    """Where the last dense layer with so many outputs is."""
    within = module.model if isinstance(module, ExtendedModel) else module
    prefix = MODEL if isinstance(module, ExtendedModel) else ""
    paths = [path for path, layer in within.named_modules() if _is_head(layer, outputs)]
    return f"{prefix}{paths[-1]}".rstrip(".") if paths else None


def show_features(module: nn.Module, outputs: int) -> nn.Module | None:
    """The module with what its last dense layer of so many outputs reads behind its predictions; None where it has no
    such layer.
    """
    path = head_path(module, outputs)
    if path is None:
        return None
    head = module.get_submodule(path) if path else module
    assert isinstance(head, nn.Linear)
    return _with_head(module, path, _as_kind(head, HeadWithInput))


def trained_form(module: nn.Module) -> nn.Module:
    """The module as steps see it."""
    return module.trained_form() if isinstance(module, ExtendedModel) else module


def loss_of_predictions(module: nn.Module, loss: Loss) -> Loss:
    """The loss for outputs of the trained form: of predictions, whatever stands beside them."""
    if not isinstance(module, ExtendedModel):
        return loss
    outputs = module.outputs
    return Loss(loss.name, lambda found, targets: loss(found[:, :outputs], targets))


def model_without_heads(module: nn.Module) -> nn.Module:
    return module.plain_model() if isinstance(module, ExtendedModel) else module


def state_without_heads(module: nn.Module, state: ModelState) -> ModelState:
    """A state of the module as one of the model that it extends."""
    if not isinstance(module, ExtendedModel):
        return state
    return {name.removeprefix(MODEL): tensor for name, tensor in state.items() if name.startswith(MODEL)}


def _is_head(layer: nn.Module, outputs: int) -> bool:
    return type(layer) in (nn.Linear, HeadWithInput) and getattr(layer, "out_features", None) == outputs


def _as_kind(head: nn.Linear, kind: type[nn.Linear]) -> nn.Linear:
    made = kind(head.in_features, head.out_features, bias=head.bias is not None)
    made.load_state_dict(head.state_dict())
    return made.to(head.weight.device).train(head.training)


def _with_head(module: nn.Module, path: str, head: nn.Linear) -> nn.Module:
    if not path:
        return head
    parent, _, child = path.rpartition(".")
    setattr(module.get_submodule(parent), child, head)
    return module


@torch.no_grad()
def _check_same(module: nn.Module, extended: ExtendedModel, x: Tensor, name: str) -> None:
    """Refuse a model that does something behind its last dense layer: what the heads read would be no features."""
    before, after = deepcopy(module).eval()(x), deepcopy(extended).eval()(x)
    if before.shape != after.shape or not torch.allclose(before, after, atol=1e-5):
        raise ModelError(f"{name} needs a model that ends in a dense layer; this one computes something behind it")
