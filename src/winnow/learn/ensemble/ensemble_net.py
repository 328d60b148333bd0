"""The leaves of an ensemble and what combines them, as one module."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.extended_model import show_features
from winnow.learn.models import ModelSettings, Shape, Width
from winnow.learn.stack import ModelState

Combination: TypeAlias = Literal["mean", "median", "max", "over-arch"]
Prediction: TypeAlias = Literal["softmax", "sigmoid", "values"]
"""What leaves' outputs stand for: logits of classes, one logit of two classes, or values of a regression."""

LEAF_PREFIX, OVER_PREFIX = "leaves.", "over."


class InputMask(nn.Module):
    """Lets some inputs through and makes the others 0. Which ones is part of the state, and nobody trains it."""

    kept: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(shape, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kept


class OverArchNet(nn.Module):
    """What is added to the mean of the leaves, whose `outputs` are the first features: 0 before it is trained."""

    def __init__(self, features: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = features
        for wide in hidden:
            layers += [nn.Linear(width, wide), nn.ReLU()]
            width = wide
        last = nn.Linear(width, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.outputs, self.layers = outputs, nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        added: Tensor = self.layers(features)
        return features[:, : self.outputs] + added


class EnsembleNet(nn.Module):
    """Leaves, whose predictions are combined; with an over-arch, by a network on them and on what each leaf's last
    dense layer reads (section 3.1). Its outputs stand for what a leaf's do: softmax gives probabilities.
    """

    def __init__(
        self,
        leaves: Sequence[nn.Module],
        outputs: int,
        combine: Combination,
        prediction: Prediction,
        over: OverArchNet | None = None,
        *,
        last_hidden: bool = False,
    ) -> None:
        super().__init__()
        shown = [show_features(leaf, outputs) for leaf in leaves] if last_hidden else list(leaves)
        if any(leaf is None for leaf in shown):
            raise ModelError(
                f"an over-arch reads what leaves' last dense layer of {outputs} outputs reads, and the model has none; "
                "set ensemble.combine.last_hidden = false"
            )
        self.leaves = nn.ModuleList([leaf for leaf in shown if leaf is not None])
        self.outputs, self.combine, self.prediction, self.over = outputs, combine, prediction, over

    def features(self, x: Tensor) -> Tensor:
        """The mean of the leaves, each leaf's predictions, and their last hidden layers where those are shown."""
        told = [leaf(x).flatten(1) for leaf in self.leaves]
        predictions = [each[:, : self.outputs] for each in told]
        mean = combined(torch.stack(predictions), "mean", self.prediction)
        return torch.cat([mean, *predictions, *(each[:, self.outputs :] for each in told)], 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.over is not None:
            outputs: Tensor = self.over(self.features(x))
            return outputs
        return combined(torch.stack([leaf(x) for leaf in self.leaves]), self.combine, self.prediction)


def combined(outputs: Tensor, combine: Combination, prediction: Prediction) -> Tensor:
    """Of leaves' outputs [leaves, n, …] the mean, median or maximum of the predictions, in the leaves' own form."""
    if len(outputs) == 1:
        return outputs[0]
    if prediction == "values":
        return _over_leaves(outputs, combine)
    if prediction == "sigmoid":
        return torch.logit(_over_leaves(outputs.sigmoid(), combine), eps=1e-7)
    chances = outputs.softmax(2)
    if combine == "max" and outputs.shape[2] == 2:
        second = chances[:, :, 1].max(0).values
        found = torch.stack([1 - second, second], 1)
    else:
        found = _over_leaves(chances, combine)
        found = found / found.sum(1, keepdim=True)
    return found.clamp_min(1e-30).log()


def _over_leaves(values: Tensor, combine: Combination) -> Tensor:
    if combine == "median":
        return values.quantile(0.5, dim=0)
    return values.max(0).values if combine == "max" else values.mean(0)


def leaf_states(state: ModelState) -> list[ModelState]:
    """Each leaf's own state, of an ensemble's."""
    found: dict[int, ModelState] = {}
    for name, tensor in state.items():
        if name.startswith(LEAF_PREFIX):
            number, _, own = name.removeprefix(LEAF_PREFIX).partition(".")
            found.setdefault(int(number), {})[own] = tensor
    return [found[number] for number in sorted(found)]


def joined_state(leaves: Sequence[ModelState], over: Mapping[str, Tensor] | None = None) -> ModelState:
    """An ensemble's state, of its leaves' and the over-arch's."""
    named = {f"{LEAF_PREFIX}{i}.{name}": t for i, leaf in enumerate(leaves) for name, t in leaf.items()}
    return named | {f"{OVER_PREFIX}{name}": tensor for name, tensor in (over or {}).items()}


class EnsembleModel(ModelSettings):
    """Several models of one kind, the leaves, and what combines them; as an ensemble's training leaves it. Trained as
    one model it is a network as wide as all its leaves.
    """

    name: Literal["ensemble"] = "ensemble"
    leaf: ModelSettings
    leaves: int = Field(ge=1, le=1001)
    combine: Combination = "mean"
    prediction: Prediction = "softmax"
    hidden: tuple[Width, ...] = (32,)
    last_hidden: bool = True
    masked: bool = False

    def build(self, sample_shape: Shape, outputs: int) -> EnsembleNet:
        leaves = [self._leaf(sample_shape, outputs) for _ in range(self.leaves)]
        return self.join(leaves, sample_shape, outputs)

    def join(self, leaves: Sequence[nn.Module], sample_shape: Shape, outputs: int) -> EnsembleNet:
        """The ensemble of these leaves, with an over-arch where it has one."""
        learns = self.combine == "over-arch"
        net = EnsembleNet(leaves, outputs, self.combine, self.prediction, last_hidden=learns and self.last_hidden)
        if learns:
            device = next(net.parameters()).device
            like = torch.zeros(1, *sample_shape, device=device)
            with torch.no_grad():
                width = net.eval().features(like).shape[1]
            net.over = OverArchNet(width, self.hidden, outputs).to(device)
        return net

    def _leaf(self, sample_shape: Shape, outputs: int) -> nn.Module:
        leaf = self.leaf.build(sample_shape, outputs)
        return nn.Sequential(InputMask(sample_shape), leaf) if self.masked else leaf
