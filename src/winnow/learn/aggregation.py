"""How clients' updates become the next model.

Updates are aggregated one after another (`start`, `add`, `finish`), in the order of the clients' numbers, so that sums
repeat bit for bit.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from msgspec import Struct, field
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from winnow.core import Arrays, Choice, Population
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.client_numbers import TrustByName, client_key, trust_by_key
from winnow.learn.stack import ModelState


class Contribution(Struct, frozen=True, kw_only=True, gc=False):
    """A client's model and what it reported; `count` exceeds one if the client was drawn more than once."""

    model: Arrays
    client: int
    count: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)


class Fold(Protocol):
    """An aggregation in progress."""

    def add(self, update: Contribution) -> None: ...

    def finish(self) -> ModelState:
        """The aggregated model; the previous one if nothing was added."""


@runtime_checkable
class LinearFold(Fold, Protocol):
    """An aggregation that can also do with a weighted mean of updates, where nobody may see the updates."""

    def weight_of(self, client: int, count: int) -> float:
        """What the client counts, if it was drawn so often."""

    def add_mean(self, model: Arrays, weight: float) -> None:
        """Add the weighted mean of several models, whose weights have this sum."""


class AggregationRule(Choice, AlgorithmPart):
    """A rule by which updates become a model."""

    needs_only_sums: ClassVar[bool] = False
    """Whether weighted sums of the updates are all that it needs: then its fold is a `LinearFold`."""

    @property
    def needs_start_loss(self) -> bool:
        """Whether each reply must tell the loss, on the client's data, of the model that the client was sent."""
        return False

    @property
    def takes_weights(self) -> bool:
        """Whether a client can be made to count less than others: then its fold is a `LinearFold`."""
        return False

    @property
    def min_clients(self) -> int:
        """How few updates it can work with."""
        return 1

    def for_clients(self, names: Sequence[str]) -> "AggregationRule":
        """The rule where clients are called so; it raises a `ConfigError` if its settings name others."""
        return self

    @abstractmethod
    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        """Begin with a round's updates; `rng` is for rules that draw, and another in every round."""


class WeightedSum:
    """Σ w_k·θ_k over named tensors, in float32; integer buffers (a batch counter) are averaged and rounded."""

    def __init__(self, like: ModelState) -> None:
        self.names = list(like)
        self.dtypes = {name: tensor.dtype for name, tensor in like.items()}
        self.sums = [torch.zeros_like(t, dtype=_summed(t)) for t in like.values()]
        self.weight = 0.0

    def add(self, update: Arrays, weight: float) -> None:
        torch._foreach_add_(self.sums, [update[name] for name in self.names], alpha=weight)
        self.weight += weight

    def scale(self, factor: float) -> None:
        """Have all that was added so far count so much more or less."""
        torch._foreach_mul_(self.sums, factor)
        self.weight *= factor

    def mean(self) -> ModelState:
        """The sum divided by the weights' sum."""
        return self._cast(torch._foreach_div(self.sums, self.weight))

    def total(self) -> ModelState:
        return self._cast(self.sums)

    def _cast(self, tensors: "list[Tensor] | tuple[Tensor, ...]") -> ModelState:
        return {
            name: t if t.dtype == self.dtypes[name] else t.round().to(self.dtypes[name])
            for name, t in zip(self.names, tensors, strict=True)
        }


def mean_weight(fold: LinearFold, population: Population) -> float:
    """What a client counts on average over the population, by its public size."""
    return sum(fold.weight_of(client, 1) for client in range(len(population))) / len(population)


def _summed(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.float64


class FullAggregation(AggregationRule):
    """θ = Σ_k |D_k|/|D|·θ_k over *all* clients, where those left out keep the previous model (equation 8, first case).

    Each client has one entry, however often it was drawn.
    """

    name: Literal["full"] = "full"
    needs_only_sums: ClassVar[bool] = True

    @property
    def takes_weights(self) -> bool:
        return True

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        return _FullFold(model, population.sizes)


class _FullFold:
    def __init__(self, model: ModelState, sizes: NDArray[np.int64]) -> None:
        self._model, self._shares = model, sizes / sizes.sum()
        self._left = 1.0
        self._sum = WeightedSum(model)

    def add(self, update: Contribution) -> None:
        self.add_mean(update.model, self.weight_of(update.client, update.count))

    def weight_of(self, client: int, count: int) -> float:
        return float(self._shares[client])

    def add_mean(self, model: Arrays, weight: float) -> None:
        self._left -= weight
        self._sum.add(model, weight)

    def finish(self) -> ModelState:
        if self._sum.weight:
            self._sum.add(self._model, self._left)
            return self._sum.total()
        return self._model


class PartialAggregation(AggregationRule):
    """θ = Σ_{k∈S} w_k·θ_k over the participants S only.

    weights = "size":     w_k = |D_k| / |D_S|        (equation 8 of the first version, second case; the default)
    weights = "uniform":  w_k = 1 / K                (equation 39 of the journal's appendix)
    weights = "scheme-2": w_k = N/K · |D_k| / |D|    (Scheme II; the weights need not sum to one)
    """

    name: Literal["partial"] = "partial"
    weights: Literal["size", "uniform", "scheme-2"] = "size"
    needs_only_sums: ClassVar[bool] = True

    @property
    def takes_weights(self) -> bool:
        return self.weights != "scheme-2"  # whose weights must add up to one on average

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        sizes = population.sizes
        if self.weights == "uniform":
            return _PartialFold(model, np.ones(len(sizes)), normalise=True)
        if self.weights == "scheme-2":
            return _PartialFold(model, len(sizes) / cohort_size * sizes / sizes.sum(), normalise=False)
        return _PartialFold(model, sizes.astype(np.float64), normalise=True)


class _PartialFold:
    def __init__(self, model: ModelState, weights: NDArray[np.float64], normalise: bool) -> None:
        self._model, self._weights, self._normalise = model, weights, normalise
        self._sum = WeightedSum(model)

    def add(self, update: Contribution) -> None:
        self.add_mean(update.model, self.weight_of(update.client, update.count))

    def weight_of(self, client: int, count: int) -> float:
        return count * float(self._weights[client])

    def add_mean(self, model: Arrays, weight: float) -> None:
        self._sum.add(model, weight)

    def finish(self) -> ModelState:
        if not self._sum.weight:
            return self._model
        return self._sum.mean() if self._normalise else self._sum.total()


class TrustAggregation(AggregationRule):
    """θ = Σ_{k∈S} w_k·θ_k with w_k ∝ τ_k·|D_k|, or with weights = "uniform" w_k ∝ τ_k.

    `trust` has τ of every client by its name, such as truth discovery finds it; who has 0 does not count.
    """

    name: Literal["trust"] = "trust"
    trust: TrustByName = Field(min_length=1)
    weights: Literal["size", "uniform"] = "size"
    needs_only_sums: ClassVar[bool] = True

    @property
    def takes_weights(self) -> bool:
        return True

    def for_clients(self, names: Sequence[str]) -> AggregationRule:
        return self.model_copy(update={"trust": trust_by_key(self.trust, names, "aggregate.trust")})

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        trusts = np.array([self.trust[client_key(number)] for number in range(len(population))])
        return _PartialFold(model, trusts if self.weights == "uniform" else trusts * population.sizes, normalise=True)
