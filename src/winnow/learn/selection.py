"""Which clients take part in a round.

A `Selector` is the setting; `start` gives the `Selection` of one run, which carries its state. In each round it
proposes clients, for which it may first exchange messages of its own, and then observes what the replies report.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from winnow.core import UNTIL_ALL, Choice, ConfigError, Population, Reply, Until
from winnow.learn.algorithm_part import AlgorithmPart, DataSummary
from winnow.learn.client_numbers import TrustByName, client_key, trust_by_key
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.profile_comparison import PlainComparison, ProfileComparison
from winnow.learn.reply_checks import Rejection, unexpected_fault
from winnow.learn.representation_profile import ReferenceProfile, SendTasks
from winnow.learn.stack import ModelState

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class SelectionContext:
    """What a selection may see and use in one round."""

    round: int
    version: int
    oldest_pending_version: int
    """The oldest version of which replies may still come."""
    rng: np.random.Generator
    model: ModelState
    reference: ReferenceProfile | None
    message_bytes: int
    """What one transfer of the model weighs."""
    trained: tuple[str, ...]
    """The names of what clients train of the model."""
    send_tasks: SendTasks
    """Exchange messages of the selection's own; their cost is charged to the round."""
    profile_classes: ProfileClasses | None = None
    """For profiles by class, those classes."""


@dataclass(frozen=True, kw_only=True)
class SelectedClients:
    """The selected clients, how often each was drawn, and how many replies to wait for."""

    clients: NDArray[np.int64]
    counts: NDArray[np.int64]
    until: Until = UNTIL_ALL
    scores: NDArray[np.float64] | None = None


class Selection(ABC):
    """A selector at work. Without state it needs only `propose`."""

    @abstractmethod
    def propose(self, context: SelectionContext) -> SelectedClients: ...

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:  # noqa: B027  # optional: many report nothing
        """Learn from what the replies of this round report."""

    def state(self) -> Mapping[str, Any]:
        """Named arrays for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # optional: many keep no state
        """Continue from a checkpoint."""


def observe_one_by_one(selection: Selection, context: SelectionContext, replies: Sequence[Reply]) -> list[Rejection]:
    """Have a selection that fails over some replies see the others; those over which it fails are rejected."""
    refused = []
    for reply in replies:
        try:
            selection.observe(context, [reply])
        except Exception as error:
            client = reply.task.client
            refused.append(
                Rejection(
                    client=client,
                    reason=unexpected_fault("the selection cannot use the reply's metrics or profile", client, error),
                )
            )
    return refused


DEFAULT_FRACTION = 0.2
DEFAULT_MIN_CLIENTS = 10
"""A fifth of five clients would be one, and the model would follow one client after another."""


class Selector(Choice, AlgorithmPart):
    """A rule for selecting clients: a fraction of them, or a number.

    Without either it is a fifth of them, but at least ten, or all where there are fewer.
    """

    fraction: float | None = Field(default=None, gt=0, le=1)
    count: int | None = Field(default=None, ge=1)
    replacement: bool = False
    sees_updates: ClassVar[bool] = False
    """Whether it looks at each client's update, and not only at what replies report."""
    trains_all_first: ClassVar[bool] = False
    """Whether round 1 selects everybody, whatever the size of a cohort."""

    @model_validator(mode="after")
    def _not_both(self) -> "Selector":
        if self.fraction is not None and self.count is not None:
            raise ValueError("set fraction or count, not both")
        return self

    def layer_for(self, module: nn.Module, x: Tensor) -> str | None:
        """The layer whose profile each reply must carry, for samples like x; None where no profile is needed."""
        return None

    @property
    def comparison(self) -> ProfileComparison:
        """How profiles are compared, where replies carry any."""
        return PlainComparison()

    def profile_classes(self, classes: int | None, y: NDArray[Any], *, sequences: bool) -> ProfileClasses | None:
        """By which classes profiles are made, given the number of labels (None: a regression), those of the reference
        set at the server, and whether a sample has a sequence of them; None where profiles are marginal or not needed.
        """
        return None

    def accepts_classes(self, asked: ProfileClasses | None, labels: int | None) -> bool:
        """Whether a site whose data have so many labels may make profiles by these classes, which a server asks for."""
        return asked is None

    @property
    def needs_start_loss(self) -> bool:
        """Whether each reply must tell the loss, on the client's data, of the model that the client was sent."""
        return False

    @property
    def requests_losses(self) -> bool:
        """Whether clients that do not train are asked for the loss of a model on their data, too."""
        return False

    @property
    def needs_labels(self) -> bool:
        """Whether it goes by something that takes the label of every sample."""
        return self.needs_start_loss or self.requests_losses

    def conflict(self, whole: "Algorithm") -> str | None:
        return self.comparison.conflict(whole)

    def check_data(self, data: DataSummary) -> None:
        self.comparison.check_data(data)

    def for_clients(self, names: Sequence[str]) -> "Selector":
        """The rule where clients are called so; it raises a `ConfigError` if its settings name others."""
        return self

    @abstractmethod
    def start(self, population: Population) -> Selection: ...

    def cohort_size(self, clients: int) -> int:
        """K = C·N, at least one."""
        if self.count is not None:
            if self.count > clients and not self.replacement:
                raise ConfigError(
                    f"select.count: cannot select {self.count} of {clients} clients; lower it, or set "
                    "select.replacement = true"
                )
            return self.count
        if self.fraction is not None:
            return max(1, round(self.fraction * clients))
        return max(min(clients, DEFAULT_MIN_CLIENTS), round(DEFAULT_FRACTION * clients))

    def sampling_probability(self, clients: int) -> float | None:
        """Each client's probability to be selected, where that is drawn for each alone whatever their data are (Poisson
        sampling); None for any other rule. Privacy is amplified by the former only.
        """
        return None

    def initial_replies(self, clients: int) -> int:
        """How many replies the first rounds wait for."""
        return self.cohort_size(clients)


class SelectorWithoutReplacement(Selector):
    """A rule that has no meaning for drawing a client twice."""

    @model_validator(mode="after")
    def _without_replacement(self) -> "SelectorWithoutReplacement":
        if self.replacement:
            raise ValueError("this selection does not support replacement; remove it")
        return self


TINY = np.finfo(np.float32).tiny
MAX_SCORED_CLIENTS = 2_000
"""Populations up to this size have their scores shown; for more, nobody could look at them."""


def draw(
    log_weights: NDArray[np.float64], count: int, rng: np.random.Generator, *, replacement: bool
) -> SelectedClients:
    """Clients drawn with probability proportional to exp(log_weights), and those probabilities.

    Without replacement: the `count` largest of log-weight plus Gumbel noise, which has the law of drawing one after the
    other from those that are left. Nothing is exponentiated that could under- or overflow.
    """
    if replacement:
        cumulative = np.exp(log_weights - log_weights.max()).cumsum()
        drawn = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
        clients, counts = np.unique(drawn, return_counts=True)
    else:
        waits = np.maximum(rng.standard_exponential(len(log_weights), dtype=np.float32), TINY)
        keys = log_weights - np.log(waits)  # minus the logarithm of an exponential variable is a Gumbel variable
        clients = np.sort(np.argpartition(keys, len(keys) - count)[-count:])
        counts = np.ones(count, np.int64)
    scores = _shares(log_weights) if len(log_weights) <= MAX_SCORED_CLIENTS else None
    return SelectedClients(clients=clients, counts=counts, scores=scores)


def _shares(log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(log_weights - log_weights.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


class WeightedSelection(Selection):
    """Draws by weights that never change."""

    def __init__(self, log_weights: NDArray[np.float64], count: int, *, replacement: bool) -> None:
        self._log_weights, self._count, self._replacement = log_weights, count, replacement

    def propose(self, context: SelectionContext) -> SelectedClients:
        return draw(self._log_weights, self._count, context.rng, replacement=self._replacement)


class UniformSelector(Selector):
    """Every client is as likely as any other."""

    name: Literal["uniform"] = "uniform"

    def start(self, population: Population) -> Selection:
        return _UniformSelection(len(population), self.cohort_size(len(population)), self.replacement)


class _UniformSelection(Selection):
    def __init__(self, clients: int, count: int, replacement: bool) -> None:
        self._clients, self._count, self._replacement = clients, count, replacement

    def propose(self, context: SelectionContext) -> SelectedClients:
        drawn = context.rng.choice(self._clients, self._count, replace=self._replacement)
        clients, counts = np.unique(drawn, return_counts=True)
        return SelectedClients(clients=clients, counts=counts)


class TrustSelector(Selector):
    """Clients are drawn with probability p_k = τ_k / Σ τ; who has τ = 0 never is.

    `trust` has τ of every client by its name, such as truth discovery finds it.
    """

    name: Literal["trust"] = "trust"
    trust: TrustByName = Field(min_length=1)

    def for_clients(self, names: Sequence[str]) -> Selector:
        return self.model_copy(update={"trust": trust_by_key(self.trust, names, "select.trust")})

    def start(self, population: Population) -> Selection:
        with np.errstate(divide="ignore"):  # who is not trusted at all has −∞, and is never drawn
            trusts = np.log([self.trust[client_key(number)] for number in range(len(population))])
        return WeightedSelection(trusts, self.cohort_size(len(population)), replacement=self.replacement)

    def cohort_size(self, clients: int) -> int:
        """Without replacement, no more than are trusted."""
        size, trusted = super().cohort_size(clients), sum(value > 0 for value in self.trust.values())
        if self.replacement or size <= trusted:
            return size
        if self.count is not None:
            raise ConfigError(
                f"select.count: cannot select {self.count} clients, since {trusted} have trust above 0; lower it"
            )
        return trusted
