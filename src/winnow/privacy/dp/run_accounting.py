"""What a run's parts release, and how it is accounted for.

Every guarantee has a name: `epsilon` hides a client from those who see the models (or, under secure aggregation, the
sums); `local_epsilon` hides a client's update from the server as well; `record_epsilon` hides a sample. Noisy profiles
are in each of them; where there is none, `profile_epsilon` tells what profiles alone have cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError, Population
from winnow.learn.accountant_interface import AccountantFactory, no_accountant
from winnow.learn.algorithm import Algorithm
from winnow.learn.update_filters import TwoSidedFilter
from winnow.privacy.dp.central import CentralDp
from winnow.privacy.dp.distributed_discrete_gaussian import DiscreteGaussian
from winnow.privacy.dp.dp_sgd import DpSgd
from winnow.privacy.dp.local import LocalDp
from winnow.privacy.dp.noisy_profiles import NoisyProfiles
from winnow.privacy.dp.privacy_loss import AnyRelease, GaussianRelease, epsilon
from winnow.privacy.dp.selection_check import selection_fault
from winnow.privacy.secagg.secure_collect import SecureAggregation


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is promised, with which δ and up to which ε, and what may have been released of one client.

    `released(rounds, times)` gives all that one client can have released after so many rounds, of which it took part in
    so many; one entry for each kind of client that may be the worst off.
    """

    name: str
    setting: str
    delta: float
    budget: float | None
    released: Callable[[int, NDArray[np.int64]], Sequence[Sequence[AnyRelease]]]
    among: tuple[int, str]
    """How many of what are hidden: clients, or samples."""

    def spent(self, rounds: int, times: NDArray[np.int64]) -> float:
        return max(epsilon(releases, self.delta) for releases in self.released(rounds, times))


class DpAccountant:
    """Counts in which rounds each client took part. What a client has spent follows from that alone."""

    def __init__(self, guarantees: Sequence[Guarantee], clients: int) -> None:
        self._guarantees = guarantees
        self._rounds, self._times = 0, np.zeros(clients, np.int64)
        for guarantee in guarantees:
            number, what = guarantee.among
            if guarantee.delta >= 1 / number:
                raise ConfigError(
                    f"{guarantee.setting}.delta = {guarantee.delta:g} must be below 1 / {number} {what}: "
                    "a mechanism that reveals one of them entirely would satisfy it"
                )
        refusal = self.exhausted_reason()
        if refusal is not None:
            raise ConfigError(f"{refusal}; raise it, or add more noise")

    def record_round(self, clients: NDArray[np.int64]) -> None:
        self._rounds += 1
        self._times[clients] += 1

    def spent(self) -> Mapping[str, float]:
        return {each.name: each.spent(self._rounds, self._times) for each in self._guarantees}

    def exhausted_reason(self) -> str | None:
        """Nobody knows yet who will be drawn, so the next round counts for everybody."""
        for each in self._guarantees:
            after = 0.0 if each.budget is None else each.spent(self._rounds + 1, self._times + 1)
            if each.budget is not None and after > each.budget:
                return (
                    f"{each.setting}.epsilon = {each.budget:g} does not last for round {self._rounds + 1}: "
                    f"ε would be {after:.4g} at δ = {each.delta:g}"
                )
        return None

    def state(self) -> Mapping[str, Any]:
        return {"rounds": np.array([self._rounds]), "times": self._times.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rounds = int(np.asarray(state["rounds"])[0])
        self._times = np.array(state["times"], np.int64)


def accountant_for(
    whole: Algorithm, filters: Sequence[TwoSidedFilter], *, selection_is_public: bool = False
) -> AccountantFactory:
    """Makes the accountant of a run, or none where no part claims privacy. Where others learn which clients were
    selected (`selection_is_public`), sampling does not amplify privacy.
    """
    if not promises_privacy(whole, filters):
        return no_accountant

    def opened(population: Population) -> DpAccountant | None:
        clients = len(population)
        of_clients = client_guarantees(whole, filters, clients, selection_is_public=selection_is_public)
        found = [*of_clients, *_to_samples(whole, population)]
        found = found or _of_profiles(whole, clients)
        return DpAccountant(found, clients) if found else None

    return opened


def promises_privacy(whole: Algorithm, filters: Sequence[TwoSidedFilter]) -> bool:
    """Whether any part may claim privacy."""
    private = isinstance(whole.collect, CentralDp | SecureAggregation) or isinstance(whole.client, DpSgd)
    noisy_profiles = isinstance(whole.select.comparison, NoisyProfiles)
    return private or noisy_profiles or any(isinstance(each, LocalDp) for each in filters)


def guarantees_of_client(
    whole: Algorithm, filters: Sequence[TwoSidedFilter], clients: int, size: int, *, selection_is_public: bool
) -> list[Guarantee]:
    """What is promised to one of so many clients, which has so many samples."""
    alone = Population(sizes=np.array([size], np.int64))
    promised = client_guarantees(whole, filters, clients, selection_is_public=selection_is_public)
    return [*promised, *_to_samples(whole, alone)] or _of_profiles(whole, clients)


def site_guarantees(whole: Algorithm, filters: Sequence[TwoSidedFilter], size: int) -> list[Guarantee]:
    """What a site can hold by itself, whatever the server does, for a client with so many samples."""
    alone = Population(sizes=np.array([size], np.int64))
    in_sums = _of_collect(whole, len(alone)) if isinstance(whole.collect, SecureAggregation) else []
    return [*_of_filters(whole, filters, len(alone)), *_to_samples(whole, alone), *in_sums]


def client_guarantees(
    whole: Algorithm, filters: Sequence[TwoSidedFilter], clients: int, *, selection_is_public: bool = False
) -> list[Guarantee]:
    """What is promised to clients, which does not depend on how many samples they have."""
    return [
        *_of_collect(whole, clients, selection_is_public=selection_is_public),
        *_of_filters(whole, filters, clients),
    ]


def _of_filters(whole: Algorithm, filters: Sequence[TwoSidedFilter], clients: int) -> list[Guarantee]:
    return [_of_filter(each, whole, clients) for each in filters if isinstance(each, LocalDp)]


def _to_samples(whole: Algorithm, population: Population) -> list[Guarantee]:
    return [_of_client(whole.client, whole, population)] if isinstance(whole.client, DpSgd) else []


def _of_collect(whole: Algorithm, clients: int, *, selection_is_public: bool = False) -> list[Guarantee]:
    collect = whole.collect
    if isinstance(collect, CentralDp):
        probability = None if selection_is_public else whole.select.sampling_probability(clients)
        noise = collect.noise_multiplier

        def released(rounds: int, times: NDArray[np.int64]) -> list[list[AnyRelease]]:
            if probability is not None:
                return [[GaussianRelease(noise=noise, times=rounds, sampling_probability=probability)]]
            most = int(times.max())
            return [[GaussianRelease(noise=noise, times=most), *_profiles(whole, most)]]

        return [_guarantee("epsilon", "collect", collect, released, (clients, "clients"))]
    if isinstance(collect, SecureAggregation) and isinstance(collect.encoding, DiscreteGaussian):
        encoding = collect.encoding
        _check_secure(whole, collect, encoding)
        return [
            _guarantee(
                "epsilon",
                "collect.encoding",
                encoding,
                lambda rounds, times: [[*encoding.releases(int(times.max())), *_profiles(whole, int(times.max()))]],
                (clients, "clients"),
            )
        ]
    return []


def _check_secure(whole: Algorithm, collect: SecureAggregation, encoding: DiscreteGaussian) -> None:
    conflict = selection_fault(whole, 'collect.encoding = "discrete-gaussian"')
    if conflict is not None:
        raise ConfigError(conflict)
    if whole.client.extra_parts:
        raise ConfigError(
            f'collect.encoding = "discrete-gaussian" bounds the model alone, and client.name = '
            f"{getattr(whole.client, 'name', '')!r} also sends {', '.join(whole.client.extra_parts)}; write another "
            "client"
        )
    if encoding.honest_fraction > collect.threshold:
        raise ConfigError(
            f"collect.encoding.honest_fraction = {encoding.honest_fraction:g} counts on the noise of more clients than "
            f"collect.threshold = {collect.threshold:g} has in a sum; lower it"
        )


def _profiles(whole: Algorithm, times: int) -> list[GaussianRelease]:
    """Noisy profiles: one before the first round, and one with every reply."""
    matching = whole.select.comparison
    return (
        [GaussianRelease(noise=matching.noise_multiplier, times=times + 1)]
        if isinstance(matching, NoisyProfiles)
        else []
    )


def _of_profiles(whole: Algorithm, clients: int) -> list[Guarantee]:
    """Where nothing else has an ε that profiles could be counted in."""
    matching = whole.select.comparison
    if not isinstance(matching, NoisyProfiles):
        return []
    return [
        Guarantee(
            name="profile_epsilon",
            setting="select.profile_comparison",
            delta=matching.delta,
            budget=None,
            released=lambda rounds, times: [_profiles(whole, int(times.max()))],
            among=(clients, "clients"),
        )
    ]


def _of_filter(filtering: LocalDp, whole: Algorithm, clients: int) -> Guarantee:
    parts = 1 + len(whole.client.extra_parts)

    def released(rounds: int, times: NDArray[np.int64]) -> list[list[AnyRelease]]:
        most = int(times.max())
        return [[*filtering.releases(most, parts), *_profiles(whole, most)]]

    return _guarantee("local_epsilon", "filters", filtering, released, (clients, "clients"))


def _of_client(client: DpSgd, whole: Algorithm, population: Population) -> Guarantee:
    def released(rounds: int, times: NDArray[np.int64]) -> list[list[GaussianRelease]]:
        kinds = np.unique(np.stack([population.sizes, times]), axis=1).T.tolist()
        worst = _worst([client.release(whole.local, size, often) for size, often in kinds])
        most = int(times.max())
        return [[release, *client.further_releases(most), *_profiles(whole, most)] for release in worst]

    return _guarantee("record_epsilon", "client", client, released, (int(population.sizes.sum()), "samples"))


def _worst(releases: Sequence[GaussianRelease]) -> list[GaussianRelease]:
    """Without those that another one exceeds both in its probability and in how often."""
    found: list[GaussianRelease] = []
    for release in sorted(releases, key=lambda each: (each.sampling_probability, each.times), reverse=True):
        if not found or release.times > found[-1].times:
            found.append(release)
    return found


def _guarantee(
    name: str,
    setting: str,
    part: CentralDp | DiscreteGaussian | LocalDp | DpSgd,
    released: Callable[..., Any],
    among: tuple[int, str],
) -> Guarantee:
    return Guarantee(name=name, setting=setting, delta=part.delta, budget=part.epsilon, released=released, among=among)
