"""What follows from verdicts: clients whose data are bad are named, count less, or take no part."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from winnow.core import Arrays, ConfigError, Reply, suggest
from winnow.core.events import ALARMS, CANNOT_TELL, KEEP, READMIT
from winnow.learn.aggregation import Contribution, Fold, LinearFold
from winnow.learn.client_numbers import numbers_by_name
from winnow.learn.client_quality.assessment import ClientAssessment
from winnow.learn.client_quality.settings import Policy
from winnow.learn.selection import SelectedClients, Selection, SelectionContext
from winnow.learn.stack import ModelState


def clients_named(keep: Sequence[str], names: Sequence[str]) -> frozenset[int]:
    """The numbers of the clients that are called so, by their name or as `client 3`."""
    if not keep:
        return frozenset()
    number_of = numbers_by_name(names)
    for name in keep:
        if name not in number_of:
            raise ConfigError(f"quality.keep: there is no client {name!r}; {suggest(name, list(number_of))}")
    return frozenset(number_of[name] for name in keep)


class QualityPolicy:
    """Who counts how much, by the last assessment."""

    def __init__(self, policy: Policy, clients: int, kept: frozenset[int], min_clients: int) -> None:
        """At least `min_clients` always take part; those `kept` are never touched."""
        self._policy, self._clients, self._kept, self._min_clients = policy, clients, kept, min_clients
        self._factor: dict[int, float] = {}
        """By client against which there is evidence, what it counts: 0 if it is excluded, 1 if it is kept."""

    def apply(self, assessed: Sequence[ClientAssessment]) -> Iterator[tuple[int, str, str]]:
        """Follow from an assessment; what changes: clients, actions and reasons. The worst are dealt with first."""
        if self._policy == "warn":
            return
        for each in sorted(assessed, key=lambda each: (-np.nan_to_num(each.score), each.client)):
            reason = f"{each.verdict}: {each.evidence}" if each.evidence else each.verdict
            kept = each.client in self._kept
            if each.verdict in ALARMS:
                excluding, known = self._policy == "exclude", each.client in self._factor
                if excluding and not known and not kept and self._excluded >= self._clients - self._min_clients:
                    continue
                factor = 1.0 if kept else 0.0 if excluding else 1 / (1 + each.score)
                if self._factor.get(each.client) != factor:
                    self._factor[each.client] = factor
                    yield each.client, KEEP if kept else self._policy, reason
            elif each.verdict != CANNOT_TELL and each.client in self._factor:
                del self._factor[each.client]
                if not kept:
                    yield each.client, READMIT, reason

    @property
    def _excluded(self) -> int:
        return sum(not factor for factor in self._factor.values())

    def select(self, selected: SelectedClients, rng: np.random.Generator) -> SelectedClients:
        """Without the excluded; their places go to others, each as likely as any other."""
        excluded = np.array(sorted(k for k, factor in self._factor.items() if not factor), np.int64)
        struck = np.isin(selected.clients, excluded)
        if not struck.any():
            return selected
        left = np.setdiff1d(np.arange(self._clients), np.concatenate([selected.clients, excluded]))
        places = min(int(selected.counts[struck].sum()), len(left))
        clients = np.concatenate([selected.clients[~struck], rng.choice(left, places, replace=False)])
        counts = np.concatenate([selected.counts[~struck], np.ones(places, np.int64)])
        order = np.argsort(clients)
        return SelectedClients(
            clients=clients[order], counts=counts[order], until=selected.until, scores=selected.scores
        )

    def fold(self, fold: Fold) -> Fold:
        """The fold, in which some clients count less."""
        if self._policy != "down-weight" or not self._factor:
            return fold
        assert isinstance(fold, LinearFold)
        return DownWeightedFold(fold, self._factor)

    def state(self) -> Arrays:
        return {
            "clients": np.array(list(self._factor), np.int64),
            "factors": np.array(list(self._factor.values()), np.float64),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        clients, factors = np.asarray(state["clients"]).tolist(), np.asarray(state["factors"]).tolist()
        self._factor = dict(zip(clients, factors, strict=True))


class DownWeightedFold:
    """A fold in which some clients count less than they would: w_k ← f_k · w_k."""

    def __init__(self, fold: LinearFold, factor: Mapping[int, float]) -> None:
        self._fold, self._factor = fold, factor

    def add(self, update: Contribution) -> None:
        weight = self._fold.weight_of(update.client, update.count)
        self._fold.add_mean(update.model, self._factor.get(update.client, 1.0) * weight)

    def finish(self) -> ModelState:
        return self._fold.finish()


class SelectionUnderPolicy(Selection):
    """A selection from whose proposals the policy strikes clients."""

    def __init__(self, selection: Selection, policy: QualityPolicy) -> None:
        self._selection, self._policy = selection, policy

    def propose(self, context: SelectionContext) -> SelectedClients:
        return self._policy.select(self._selection.propose(context), context.rng)

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        self._selection.observe(context, replies)

    def state(self) -> Mapping[str, Any]:
        return self._selection.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._selection.restore(state)
