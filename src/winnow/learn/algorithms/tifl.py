"""TiFL (Chai et al., 2020): clients of a round are about equally quick, and tiers that learn badly have more turns."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import ConfigError, Population, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm, Recipe
from winnow.learn.client_loss_requests import START_LOSS, reported_metric, reporting_clients, request_losses, seconds_of
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement

Positive: TypeAlias = Annotated[int, Field(ge=1)]


class TierSelector(SelectorWithoutReplacement):
    """All of a round's clients are drawn from one tier, and the tier adaptively (the paper's algorithm 2).

    In round 1 everybody trains, which shows how long each client takes (the paper's profiling, with one round of it;
    what becomes of the updates it does not say, and here they are aggregated). Those who do not answer are left out for
    good; the others are split into equally large tiers by that time: `tiers` of them, or as many as can fill a cohort.
    After round 1, and every `interval` rounds from then on, the model is evaluated by a panel of each tier, as large as
    a cohort. If the loss of the tier last used has not fallen since, tiers are drawn by the rank of their losses from
    then on, the highest most often: a loss where the paper has an accuracy, which regressions lack.

    A tier can be used as often as its `credits` say, the quickest first; without them, without limit. When all are
    spent, they are granted again: the paper's loop would not end.
    """

    name: Literal["tier"] = "tier"
    tiers: Positive = 5
    interval: Positive = 20
    credits: tuple[Positive, ...] | None = None
    trains_all_first: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds"}

    @property
    def requests_losses(self) -> bool:
        return True

    def conflict(self, whole: Algorithm) -> str | None:
        if whole.select is not self:
            outer = getattr(whole.select, "name", "")
            return (
                f"select.sample = 'tier' waits for everybody in round 1, which select.name = {outer!r} does not allow"
            )
        return super().conflict(whole)

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
        self._seconds = np.full(len(population), np.nan)
        self._tier = np.full(len(population), -1, np.int64)
        self._panel = np.zeros(0, np.int64)
        self._losses: NDArray[np.float64] = np.zeros(tiers)
        self._chances: NDArray[np.float64] = np.ones(tiers)
        self._used = 0

    def propose(self, context: SelectionContext) -> SelectedClients:
        if np.isnan(self._seconds).all():  # in round 1, and after it if nobody answered
            clients = np.arange(len(self._tier))
            return SelectedClients(clients=clients, counts=np.ones(len(clients), np.int64))
        if not len(self._panel):
            self._form_tiers(context)
        elif (context.version - 1) % self._settings.interval == 0:
            self._adapt(context)
        self._used = self._next_tier(context.rng)
        members = np.flatnonzero(self._tier == self._used)
        clients = np.sort(context.rng.choice(members, min(self._cohort_size, len(members)), replace=False))
        return SelectedClients(clients=clients, counts=np.ones(len(clients), np.int64))

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        if not len(self._panel):
            self._seconds[reporting_clients(replies)] = seconds_of(replies)

    def _form_tiers(self, context: SelectionContext) -> None:
        answered = np.flatnonzero(np.isfinite(self._seconds))
        quickest_first = answered[np.argsort(self._seconds[answered], kind="stable")]
        tiers = np.array_split(quickest_first, len(self._losses))
        for number, members in enumerate(tiers):
            self._tier[members] = number
        self._panel = np.sort(
            np.concatenate(
                [context.rng.choice(members, min(self._cohort_size, len(members)), replace=False) for members in tiers]
            )
        )
        self._losses = self._tier_losses(request_losses(context, self._panel))

    def _adapt(self, context: SelectionContext) -> None:
        losses = self._tier_losses(request_losses(context, self._panel))
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
            "seconds": self._seconds,
            "tier": self._tier,
            "panel": self._panel,
            "losses": self._losses,
            "chances": self._chances,
            "credits": self._credits,
            "used": np.array([self._used]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._seconds = np.array(state["seconds"])
        self._tier, self._panel = np.array(state["tier"]), np.array(state["panel"])
        self._losses, self._chances = np.array(state["losses"]), np.array(state["chances"])
        self._credits, self._used = np.array(state["credits"]), int(state["used"][0])


tifl = Recipe(
    name="tifl",
    summary="one speed tier per round, partial aggregation",
    select=TierSelector,
    aggregate=PartialAggregation,
)
