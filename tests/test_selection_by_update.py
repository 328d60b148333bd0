"""Clustered sampling and DivFL, against calculations by hand."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import cdist

from selecting import people, selection_context, silent, trained
from winnow.core import ConfigError, RoundFinished, Selected
from winnow.learn import update_distances
from winnow.learn.algorithms.clustered_sampling import ClusteredSelector, fill_urns
from winnow.learn.algorithms.divfl import DiverseSelector, representative_clients
from winnow.learn.selection import Selection
from winnow.learn.update_distances import LastUpdates
from world import prepared

# Updates and their distances ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-3, 3, width=16), st.floats(-3, 3, width=16)), max_size=8),
    st.booleans(),
)
def test_distances_are_those_of_the_last_updates(arrivals: list[tuple[int, float, float]], in_parts: bool) -> None:
    """Whether updates come one by one or at once; a client that never trained has not moved."""
    known, last = LastUpdates(5), np.zeros((5, 2))
    known.allocate(selection_context(1))
    fresh = {k: (x, y) for k, x, y in arrivals}
    for k, vector in fresh.items():
        last[k] = vector
    replies = [trained(k, weight=(x + 1, y - 2), sent=(1, -2)) for k, (x, y) in fresh.items()]
    for batch in [[reply] for reply in replies] if in_parts else [replies]:
        known.record(selection_context(1), batch)
    np.testing.assert_allclose(known.distances("euclidean"), cdist(last, last), atol=1e-5)
    for i, j in combinations(range(5), 2):
        lengths = np.linalg.norm(last[i]) * np.linalg.norm(last[j])
        cosine = last[i] @ last[j] / lengths if lengths else float(not last[i].any() and not last[j].any())
        assert known.distances("angle")[i, j] == pytest.approx(np.arccos(np.clip(cosine, -1, 1)), abs=1e-3)


def test_an_update_that_is_not_finite_is_passed_over() -> None:
    known = LastUpdates(2)
    known.allocate(selection_context(1))
    known.record(selection_context(1), [trained(0, weight=(3, 4)), trained(1, weight=(np.nan, 1))])
    assert known.known.tolist() == [True, False]
    assert known.distances("euclidean")[0, 1] == pytest.approx(5)


def test_too_many_clients_or_values_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings_ in (ClusteredSelector(count=2), DiverseSelector(count=2)):
        with pytest.raises(ConfigError, match="at most 2,000 clients, not 2,001"):
            settings_.start(people(*[1] * 2_001))
    monkeypatch.setattr(update_distances, "MAX_VALUES", 7)
    with pytest.raises(ConfigError, match="4 clients with 2 parameters"):
        ClusteredSelector(count=2).start(people(1, 1, 1, 1)).propose(selection_context(1, silent))


@pytest.mark.parametrize("algorithm", ["clustered-sampling", "divfl"])
def test_a_run_keeps_what_its_clients_trained(algorithm: str) -> None:
    """Then their mean is the step that the model took: by how often each was drawn, or by the size of its data."""
    ready = prepared("rounds=1", algorithm=algorithm)
    sent = ready.training.model
    events = list(ready.training.run(ready.federation))
    [invited] = [event for event in events if isinstance(event, Selected)]
    [finished] = [event for event in events if isinstance(event, RoundFinished)]
    state = ready.training.snapshot().arrays
    assert algorithm == "clustered-sampling" or invited.clients.tolist() == list(range(8)), "all, so that all are known"
    assert np.flatnonzero(state["select/known"]).tolist() == finished.aggregated.tolist()
    step = torch.cat([(ready.training.model[name] - sent[name]).flatten() for name in sent]).numpy()
    weights = (
        invited.counts if algorithm == "clustered-sampling" else ready.federation.population.sizes[invited.clients]
    )
    np.testing.assert_allclose(weights / weights.sum() @ state["select/updates"][invited.clients], step, atol=1e-5)


# Clustered sampling -------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=15), st.integers(1, 15), st.integers(0, 2**32))
def test_urns_are_full_and_every_client_has_its_due(sizes: list[int], urns: int, seed: int) -> None:
    """Rows sum to M, columns to m·n_k: E[weight of k] = Σ_u P(k from u)/m = n_k/M, whatever the distances are."""
    points = np.random.default_rng(seed).normal(size=(len(sizes), 2)).round()  # some of them coincide
    shares = fill_urns(np.array(sizes), urns, cdist(points, points))
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) == sum(sizes)).all()
    assert (shares.sum(axis=0) == urns * np.array(sizes)).all()


def test_clusters_that_fill_urns_have_them_to_themselves() -> None:
    points = np.array([[0.0], [10], [0.1], [10.1], [0.2], [10.2]])
    shares = fill_urns(np.array([1, 2, 3, 2, 2, 2]), 2, cdist(points, points))
    assert sorted(tuple(np.flatnonzero(urn)) for urn in shares) == [(0, 2, 4), (1, 3, 5)]


def test_what_is_left_of_a_cluster_fills_the_room_of_others() -> None:
    """M = 12 and three urns: clients weigh 3·n. Two pairs weigh 12 and fill an urn; the third weighs 6 and leaves room
    for client 6, which is far from all.
    """
    points = np.array([[0.0], [0.1], [10], [10.1], [20], [20.1], [99]])
    shares = fill_urns(np.array([2, 2, 2, 2, 1, 1, 2]), 3, cdist(points, points))
    assert sorted(tuple(np.flatnonzero(urn)) for urn in shares) == [(0, 1), (2, 3), (4, 5, 6)]


def test_clusters_are_wards() -> None:
    """Along this line Ward's method makes three pairs, where single linkage would chain the first three clients; the
    last pair is split between the urns of the others.
    """
    points = np.array([[0.0], [1], [2.1], [3.3], [4.6], [6]])
    shares = fill_urns(np.ones(6, np.int64), 2, cdist(points, points))
    assert sorted(tuple(np.flatnonzero(urn)) for urn in shares) == [(0, 1, 4), (2, 3, 5)]


def test_a_cluster_that_is_too_large_keeps_no_other_from_growing() -> None:
    """Clients 0, 1 and 2 would be too many for an urn; 3 and 4 are farther apart than these, and yet share one."""
    points = np.array([[0.0], [0.1], [0.2], [10], [11], [50]])
    shares = fill_urns(np.ones(6, np.int64), 3, cdist(points, points))
    assert sorted(tuple(np.flatnonzero(urn)) for urn in shares) == [(0, 1), (2, 5), (3, 4)]


def test_a_client_that_is_large_enough_has_urns_of_its_own() -> None:
    shares = fill_urns(np.array([10, 1, 1]), 3, np.ones((3, 3)) - np.eye(3))
    assert shares[:2].tolist() == [[12, 0, 0], [12, 0, 0]]
    assert shares[2].tolist() == [6, 3, 3]


def test_weights_in_a_run_are_unbiased() -> None:
    sizes, weights = (30, 10, 5, 5), np.zeros(4)
    selection = ClusteredSelector(count=3).start(people(*sizes))
    selection.propose(selection_context(1))
    selection.observe(
        selection_context(1), [trained(1, weight=(1, 0)), trained(2, weight=(1, 0.1)), trained(3, weight=(-1, 0))]
    )
    for seed in range(3_000):
        invitation = selection.propose(selection_context(2, seed=seed))
        assert invitation.counts.sum() == 3
        weights[invitation.clients] += invitation.counts / 3
    np.testing.assert_allclose(weights / 3_000, np.array(sizes) / 50, atol=0.01)


def test_models_count_as_often_as_they_were_drawn_and_else_alike() -> None:
    ready = prepared(algorithm="clustered-sampling")
    assert all(e.counts.sum() == 3 for e in ready.training.run(ready.federation) if isinstance(e, Selected))
    assert ready.experiment.aggregate.model_dump() == {"name": "partial", "weights": "uniform"}


# DivFL --------------------------------------------------------------------------------------------------------------


def left_over(distances: np.ndarray, chosen: tuple[int, ...]) -> float:
    return float(distances[:, list(chosen)].min(axis=1).sum())


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 9), st.integers(1, 3), st.integers(0, 2**32))
def test_each_choice_is_the_best_that_could_follow_those_before(clients: int, count: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(clients, 3))
    distances = cdist(points, points)
    chosen = tuple(representative_clients(distances, count, np.random.default_rng(seed)).tolist())
    for step in range(count):
        before, rest = chosen[:step], set(range(clients)) - set(chosen[:step])
        best = min(left_over(distances, (*before, k)) for k in rest)
        assert left_over(distances, chosen[: step + 1]) == pytest.approx(best, abs=1e-3)


def test_one_of_each_kind_stands_for_all() -> None:
    selection = DiverseSelector(count=3).start(people(*[1] * 9))
    selection.propose(selection_context(1))
    kinds = [(1, 0), (-1, 0), (0, 5)]
    selection.observe(
        selection_context(1), [trained(k, weight=(kinds[k % 3][0], kinds[k % 3][1] + k / 100)) for k in range(9)]
    )
    assert {k % 3 for k in selection.propose(selection_context(2)).clients.tolist()} == {0, 1, 2}


def after_four(count: int) -> Selection:
    """Clients 0 to 3 have trained, and there are two kinds of them; 4 to 7 have not."""
    selection = DiverseSelector(count=count).start(people(*[1] * 8))
    selection.propose(selection_context(1))
    selection.observe(selection_context(1), [trained(k, weight=(k % 2, k / 1000)) for k in range(4)])
    return selection


def test_nobody_stands_for_a_client_that_never_trained() -> None:
    """One of each kind is enough; all other places go to those never tried, before a second of a kind."""
    clients = after_four(6).propose(selection_context(2)).clients.tolist()
    assert {k % 2 for k in clients[:2]} == {0, 1}
    assert clients[2:] == [4, 5, 6, 7]


def test_those_that_never_trained_are_as_likely_as_one_another() -> None:
    selection = after_four(3)
    third = Counter(int(selection.propose(selection_context(2, seed=seed)).clients[2]) for seed in range(400))
    assert stats.chisquare([third[k] for k in range(4, 8)]).pvalue > 1e-4


def test_stochastic_greedy_looks_at_some_in_each_step() -> None:
    """With one candidate a step, the choice is uniform; with all, it is not random."""
    distances = cdist(np.arange(5.0)[:, None], np.arange(5.0)[:, None])
    seen: Counter[int] = Counter()
    for seed in range(1_000):
        seen.update(representative_clients(distances, 1, np.random.default_rng(seed), sample=1).tolist())
        assert representative_clients(distances, 1, np.random.default_rng(seed), sample=5).tolist() == [2]
    assert stats.chisquare([seen[k] for k in range(5)]).pvalue > 1e-4
