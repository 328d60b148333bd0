"""TiFL (Chai et al., 2020): clients of a round are about equally quick, and tiers that learn badly have more turns."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import ConfigError, ModelError, Population, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_losses import START_LOSS, reported_metric, reporting_clients, request_losses, seconds_of
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement

Positive: TypeAlias = Annotated[int, Field(ge=1)]


class TierSelector(SelectorWithoutReplacement):
    """All of a round's clients are drawn from one tier, and the tier adaptively (the paper's algorithm 2).

    Before round 1 every client is sent the model and reports its loss; those who do not answer are left out for good,
    the others are split into equally large tiers by the time that they took: `tiers` of them, or as many as can fill a
    cohort. Every `interval` rounds the model is evaluated by a panel of each tier, as large as a cohort. If the loss of
    the tier last used has not fallen since, tiers are drawn by the rank of their losses from then on, the highest most
    often: a loss where the paper has an accuracy, which regressions lack.

    A tier can be used as often as its `credits` say, the quickest first; when all are spent, they are granted again.
    """

    name: Literal["tier"] = "tier"
    tiers: Positive = 5
    interval: Positive = 20
    credits: tuple[Positive, ...] | None = None

    @property
    def requests_losses(self) -> bool:
        return True

    def start(self, population: Population) -> Selection:
        return _TierSelection(self, population)


class _TierSelection(Selection):
    def __init__(self, settings: TierSelector, population: Population) -> None:
        self._settings, self._sizes = settings, population.sizes
        self._cohort_size = settings.cohort_size(len(population))
        tiers = max(1, min(settings.tiers, len(population) // self._cohort_size))
        if settings.credits is not None and len(settings.credits) != tiers:
            raise ConfigError(f"select.credits: has {len(settings.credits)} numbers, but there are {tiers} tiers")
        self._granted = np.full(tiers, np.inf) if settings.credits is None else np.array(settings.credits, np.float64)
        self._credits = self._granted.copy()
        self._tier = np.full(len(population), -1, np.int64)
        self._panel = np.zeros(0, np.int64)
        self._losses: NDArray[np.float64] = np.zeros(tiers)
        self._chances: NDArray[np.float64] = np.ones(tiers)
        self._used, self._evaluated_version = 0, -1

    def propose(self, context: SelectionContext) -> SelectedClients:
        if context.version != self._evaluated_version:  # a schedule may have several proposals made for one version
            self._evaluate_tiers(context)
        self._used = self._next_tier(context.rng)
        members = np.flatnonzero(self._tier == self._used)
        clients = np.sort(context.rng.choice(members, min(self._cohort_size, len(members)), replace=False))
        return SelectedClients(clients=clients, counts=np.ones(len(clients), np.int64))

    def _evaluate_tiers(self, context: SelectionContext) -> None:
        self._evaluated_version = context.version
        if context.version == 0:
            self._form_tiers(context)
        elif context.version % self._settings.interval == 0:
            self._adapt(context)

    def _form_tiers(self, context: SelectionContext) -> None:
        replies = request_losses(context, np.arange(len(self._tier)), always_send_model=True)
        if not replies:
            raise ModelError("tier selection: no client answered the first loss request, so no tiers can be formed")
        quickest_first = reporting_clients(replies)[np.argsort(seconds_of(replies), kind="stable")]
        tiers = np.array_split(quickest_first, len(self._losses))
        for number, members in enumerate(tiers):
            self._tier[members] = number
        self._panel = np.concatenate(
            [context.rng.choice(members, min(self._cohort_size, len(members)), replace=False) for members in tiers]
        )
        on_panel = np.isin(reporting_clients(replies), self._panel)
        self._losses = self._tier_losses(list(compress(replies, on_panel)))

    def _adapt(self, context: SelectionContext) -> None:
        losses = self._tier_losses(request_losses(context, np.sort(self._panel)))
        if losses[self._used] >= self._losses[self._used]:
            self._chances = losses.argsort(kind="stable").argsort().astype(np.float64) + 1
        self._losses = losses

    def _tier_losses(self, replies: Sequence[Reply]) -> NDArray[np.float64]:
        """The mean over the samples of each tier's panel; the former loss where nobody tells a finite one."""
        clients, losses = reporting_clients(replies), reported_metric(replies, START_LOSS, otherwise=np.nan)
        clients, losses = clients[np.isfinite(losses)], losses[np.isfinite(losses)]
        tiers, sizes = self._tier[clients], self._sizes[clients]
        sums = np.bincount(tiers, sizes * losses, minlength=len(self._losses))
        samples = np.bincount(tiers, sizes, minlength=len(self._losses))
        return np.divide(sums, samples, out=self._losses.copy(), where=samples > 0)

    def _next_tier(self, rng: np.random.Generator) -> int:
        if not self._credits[self._tier[self._tier >= 0]].any():
            self._credits = self._granted.copy()
        chances = self._chances * (self._credits > 0) * np.isin(np.arange(len(self._chances)), self._tier)
        tier = int(rng.choice(len(chances), p=chances / chances.sum()))
        self._credits[tier] -= 1
        return tier

    def state(self) -> Mapping[str, Any]:
        return {
            "tier": self._tier,
            "panel": self._panel,
            "losses": self._losses,
            "chances": self._chances,
            "credits": self._credits,
            "used": np.array([self._used]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._tier, self._panel = np.array(state["tier"]), np.array(state["panel"])
        self._losses, self._chances = np.array(state["losses"]), np.array(state["chances"])
        self._credits, self._used = np.array(state["credits"]), int(state["used"][0])


tifl = Recipe(
    name="tifl",
    summary="one speed tier per round, partial aggregation",
    select=TierSelector,
    aggregate=PartialAggregation,
)
