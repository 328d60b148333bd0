"""How long privacy budgets last, told before a run, and the noise with which they last to its end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, floor, log10

import numpy as np

from winnow.learn.algorithm import Algorithm
from winnow.learn.selection import UniformSelector
from winnow.learn.update_filters import TwoSidedFilter
from winnow.privacy.dp.accountant import Guarantee, client_guarantees
from winnow.privacy.dp.central import CentralDp
from winnow.privacy.dp.distributed_discrete_gaussian import DiscreteGaussian
from winnow.privacy.dp.dp_sgd import DpSgd
from winnow.privacy.dp.local import LocalDp
from winnow.privacy.dp.poisson_sampling import PoissonSampling
from winnow.privacy.dp.privacy_loss import least_noise
from winnow.privacy.secagg.collect import SecureAggregation


def forecast(whole: Algorithm, filters: Sequence[TwoSidedFilter], clients: int, rounds: int) -> Iterator[str]:
    """A line for every budget. Who will be drawn is not known, so it goes by what is likely."""
    for place, guarantee in enumerate(client_guarantees(whole, filters, clients)):
        if guarantee.budget is not None:
            noisier = _Noisier(whole, filters, clients, place)
            yield _forecast_line(guarantee, noisier, rounds)
    if isinstance(whole.client, DpSgd) and whole.client.epsilon is not None:
        yield "client.epsilon: how long it lasts depends on how many samples each client has; a run tells it by round"


class _Noisier:
    """One of the guarantees, as it would be with other noise."""

    def __init__(self, whole: Algorithm, filters: Sequence[TwoSidedFilter], clients: int, place: int) -> None:
        self._whole, self._filters, self._clients, self._place = whole, filters, clients, place

    def guarantee(self, noise: float) -> Guarantee:
        update = {"noise_multiplier": noise}
        filters = [each.model_copy(update=update) if isinstance(each, LocalDp) else each for each in self._filters]
        collect = self._whole.collect
        if isinstance(collect, CentralDp):
            collect = collect.model_copy(update=update)
        elif isinstance(collect, SecureAggregation) and isinstance(collect.encoding, DiscreteGaussian):
            collect = collect.model_copy(update={"encoding": collect.encoding.model_copy(update=update)})
        return client_guarantees(replace(self._whole, collect=collect), filters, self._clients)[self._place]

    def lasts(self, guarantee: Guarantee, rounds: int) -> bool:
        """Whether the last of so many rounds may begin: it counts for everybody, as nobody knows yet who is drawn."""
        assert guarantee.budget is not None
        return guarantee.spent(rounds, np.array([self._busiest(rounds - 1) + 1])) <= guarantee.budget

    def _busiest(self, rounds: int) -> int:
        """In how many rounds the client that is drawn most often is likely to take part: the median of that number
        under blind selection; in all of them under one that may like some clients more than others.
        """
        from scipy.stats import binom  # noqa: PLC0415 - SciPy takes long to import

        select = self._whole.select
        if not isinstance(select, UniformSelector | PoissonSampling):
            return rounds
        probability = min(1.0, select.cohort_size(self._clients) / self._clients)
        return int(binom.isf(0.5 / self._clients, rounds, probability))


def _forecast_line(guarantee: Guarantee, noisier: _Noisier, rounds: int) -> str:
    lasting = _rounds_within(guarantee, noisier, rounds)
    enough = least_noise(lambda noise: noisier.lasts(noisier.guarantee(noise), rounds))
    budget = f"{guarantee.setting}.epsilon = {guarantee.budget:g}"
    if lasting == rounds:
        less = "" if enough is None else f"; noise_multiplier = {_rounded_up(enough)} would be enough"
        return f"{budget} lasts for all {rounds} rounds{less}"
    lasts = f"lasts for about {lasting} of {rounds} rounds" if lasting else "does not last for one round"
    if enough is None:
        return f"{budget} {lasts}; no noise_multiplier makes it last for all: profiles alone spend more"
    return f"{budget} {lasts}; for all {rounds} it takes noise_multiplier = {_rounded_up(enough)} or more"


def _rounds_within(guarantee: Guarantee, noisier: _Noisier, rounds: int) -> int:
    """The most rounds, up to this number, for which the budget lasts."""
    if noisier.lasts(guarantee, rounds):
        return rounds
    least, beyond = 0, rounds
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if noisier.lasts(guarantee, middle) else (least, middle)
    return least


def _rounded_up(noise: float) -> str:
    """To three digits, and never less than it."""
    step = 10.0 ** (floor(log10(noise)) - 2)
    return f"{ceil(noise / step) * step:.3g}"
