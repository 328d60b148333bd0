"""Whom to invite: laws of the draw, scores of equation 13, and numbers at the edge."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from selecting import people
from selecting import selection_context as context_without_reference
from winnow.core import ConfigError, Population, Reply, Task
from winnow.learn.algorithms.fedprof import ProfileSelector
from winnow.learn.algorithms.srpfl import DoublingSelector
from winnow.learn.representation_profile import Profile, divergence
from winnow.learn.selection import SelectionContext, TrustSelector, UniformSelector, draw

LOG_WEIGHTS = np.log(np.array([0.5, 0.3, 0.15, 0.05]))


def chi_square_accepts(observed: dict[object, int], probability: dict[object, float]) -> bool:
    total = sum(observed.values())
    counts = np.array([observed.get(key, 0) for key in probability])
    return bool(stats.chisquare(counts, total * np.array(list(probability.values()))).pvalue > 1e-4)


def test_without_replacement_the_law_is_one_draw_after_the_other() -> None:
    weights = np.exp(LOG_WEIGHTS)
    probability: dict[object, float] = Counter()
    for first in range(4):
        for second in set(range(4)) - {first}:
            probability[frozenset((first, second))] += weights[first] * weights[second] / (1 - weights[first])
    rng = np.random.default_rng(0)
    draws = Counter(frozenset(draw(LOG_WEIGHTS, 2, rng, replacement=False).clients.tolist()) for _ in range(20_000))
    assert chi_square_accepts(draws, probability)


def test_with_replacement_each_draw_has_the_weights() -> None:
    rng, seen = np.random.default_rng(1), np.zeros(4, int)
    for _ in range(5_000):
        invitation = draw(LOG_WEIGHTS, 3, rng, replacement=True)
        assert invitation.counts.sum() == 3
        seen[invitation.clients] += invitation.counts
    assert chi_square_accepts(dict(enumerate(seen)), dict(enumerate(np.exp(LOG_WEIGHTS))))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1e300, 0), min_size=3, max_size=30),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_no_set_of_weights_under_or_overflows(log_weights: list[float], replacement: bool, seed: int) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        invitation = draw(np.array(log_weights), 3, np.random.default_rng(seed), replacement=replacement)
    assert invitation.counts.sum() == 3
    assert len(set(invitation.clients.tolist())) == len(invitation.clients)
    assert invitation.scores is not None
    assert invitation.scores.sum() == pytest.approx(1)
    assert set(invitation.clients.tolist()) <= set(range(len(log_weights)))


def test_uniform_invites_everyone_alike() -> None:
    selection = UniformSelector(count=3).start(Population(sizes=np.ones(7, np.int64)))
    seen, rng = np.zeros(7), np.random.default_rng(2)
    for number in range(1, 4_001):
        invitation = selection.propose(replace(context_without_reference(number), rng=rng))
        seen[invitation.clients] += 1
    assert chi_square_accepts(dict(enumerate(seen)), dict.fromkeys(range(7), 1 / 7))


def test_trust_draws_clients_in_proportion_and_nobody_without() -> None:
    trust = {"ada": 0.9, "bea": 0.0, "client 2": 0.1, "dan": 0.5}
    selection = TrustSelector(trust=trust, count=1).for_clients(("ada", "bea", "cy", "dan")).start(people(5, 5, 5, 5))
    seen, rng = np.zeros(4), np.random.default_rng(4)
    for number in range(1, 4_001):
        seen[selection.propose(replace(context_without_reference(number), rng=rng)).clients] += 1
    assert seen[1] == 0
    assert chi_square_accepts({k: seen[k] for k in (0, 2, 3)}, {0: 0.6, 2: 0.1 / 1.5, 3: 0.5 / 1.5})
    everybody = TrustSelector(trust=trust).for_clients(("ada", "bea", "cy", "dan")).start(people(5, 5, 5, 5))
    assert everybody.propose(context_without_reference(1)).clients.tolist() == [0, 2, 3]
    doubled = DoublingSelector.model_validate({"count": 2, "sample": {"name": "trust", "trust": trust}})
    sampled = doubled.for_clients(("ada", "bea", "cy", "dan")).start(people(5, 5, 5, 5))
    drawn = [sampled.propose(replace(context_without_reference(k), rng=rng)).clients.tolist() for k in range(1, 99)]
    assert {client for clients in drawn for client in clients} == {0, 2, 3}
    with pytest.raises(ConfigError, match="cannot select 4 clients, since 3 have trust above 0"):
        TrustSelector(trust=trust, count=4).cohort_size(4)


REFERENCE = Profile(mean=np.zeros(3, np.float32), variance=np.ones(3, np.float32))


def client_profile(shift: float) -> Profile:
    return Profile(mean=np.full(3, shift, np.float32), variance=np.ones(3, np.float32))


def answering(shifts: list[float]):
    """Clients whose data are shifted by so much answer requests for a profile."""

    def ask(tasks: list[Task]) -> list[Reply]:
        return [Reply(task=task, payload={"profile": vars(client_profile(shifts[task.client]))}) for task in tasks]

    return ask


def selection_context(round: int, ask, reference: Profile = REFERENCE, seed: int = 0) -> SelectionContext:
    return replace(context_without_reference(round, ask, seed), reference=reference)


def scores_of(settings: ProfileSelector, shifts: list[float]) -> np.ndarray:
    selection = settings.start(Population(sizes=np.ones(len(shifts), np.int64)))
    invitation = selection.propose(selection_context(1, answering(shifts)))
    assert invitation.scores is not None
    return invitation.scores


SHIFTS = [0.0, 0.2, 0.5, 1.0]


def test_scores_follow_equation_13() -> None:
    divergences = divergence([client_profile(shift) for shift in SHIFTS], REFERENCE)
    expected = np.exp(-10 * divergences)
    np.testing.assert_allclose(scores_of(ProfileSelector(count=1), SHIFTS), expected / expected.sum(), rtol=1e-9)


def test_each_client_may_have_a_factor_of_its_own() -> None:
    divergences = divergence([client_profile(shift) for shift in SHIFTS], REFERENCE)
    expected = np.exp(-np.array([10, 0, 5, 1]) * divergences)
    scores = scores_of(ProfileSelector(count=1, alpha=(10, 0, 5, 1)), SHIFTS)
    np.testing.assert_allclose(scores, expected / expected.sum(), rtol=1e-9)


def test_normalised_divergences_are_shares_of_the_largest() -> None:
    divergences = divergence([client_profile(shift) for shift in SHIFTS], REFERENCE)
    expected = np.exp(-3 * divergences / divergences.max())
    scores = scores_of(ProfileSelector(count=1, alpha=3, divergence="normalised"), SHIFTS)
    np.testing.assert_allclose(scores, expected / expected.sum(), rtol=1e-9)


def test_factors_must_match_the_clients() -> None:
    with pytest.raises(ConfigError, match=r"select\.alpha: has 2 factors, but there are 4 clients"):
        scores_of(ProfileSelector(count=1, alpha=(1, 2)), SHIFTS)


def test_alpha_zero_is_uniform_sampling() -> None:
    np.testing.assert_allclose(scores_of(ProfileSelector(count=2, alpha=0), SHIFTS), 0.25)
    selection = ProfileSelector(count=2, alpha=0).start(Population(sizes=np.ones(4, np.int64)))
    seen = np.zeros(4)
    for seed in range(4_000):
        seen[selection.propose(selection_context(1, answering(SHIFTS), seed=seed)).clients] += 1
    assert chi_square_accepts(dict(enumerate(seen)), dict.fromkeys(range(4), 0.25))


def test_profiles_are_compared_with_the_reference_of_their_own_version() -> None:
    """A client invited in round 2 profiles with version 1; others keep what they scored against version 0."""
    selection = ProfileSelector(count=1, alpha=1).start(Population(sizes=np.ones(2, np.int64)))
    selection.propose(selection_context(1, answering([0.0, 1.0])))
    moved = Profile(mean=np.full(3, 2.0, np.float32), variance=np.full(3, 4.0, np.float32))
    second = selection_context(2, answering([]), reference=moved)
    selection.propose(second)
    task = Task(name="train", client=1, round=2, version=1)
    selection.observe(second, [Reply(task=task, payload={"profile": vars(client_profile(1.0))})])
    against_old = divergence([client_profile(0.0)], REFERENCE)[0]
    against_new = divergence([client_profile(1.0)], moved)[0]
    np.testing.assert_allclose(selection.state()["divergence"], [against_old, against_new])
    assert selection.state()["version"].tolist() == [0, 1]


def test_the_server_keeps_divergences_and_one_reference_only() -> None:
    selection = ProfileSelector(count=1).start(Population(sizes=np.ones(4, np.int64)))
    for number in range(1, 6):
        selection.propose(selection_context(number, answering(SHIFTS)))
    held = [value for value in vars(selection).values() if isinstance(value, dict)]
    assert [list(references) for references in held] == [[4]]
    assert set(selection.state()) == {"divergence", "version", "reference/4/mean", "reference/4/variance"}


def test_a_client_that_never_sent_a_profile_counts_as_the_farthest() -> None:
    def ask(tasks: list[Task]) -> list[Reply]:
        return [reply for reply in answering(SHIFTS)(tasks) if reply.task.client != 1]

    selection = ProfileSelector(count=1).start(Population(sizes=np.ones(4, np.int64)))
    scores = selection.propose(selection_context(1, ask)).scores
    assert scores is not None
    assert scores[1] == scores[3] == scores.min()


def test_a_fraction_and_a_count_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="set fraction or count, not both"):
        UniformSelector(fraction=0.1, count=2)


@pytest.mark.parametrize(("clients", "selected"), [(1, 1), (5, 5), (10, 10), (11, 10), (50, 10), (100, 20)])
def test_few_clients_are_all_selected_unless_told_otherwise(clients: int, selected: int) -> None:
    population = Population(sizes=np.ones(clients, np.int64))
    for selector, count in ((UniformSelector(), selected), (UniformSelector(fraction=0.2), max(1, round(clients / 5)))):
        chosen = selector.start(population).propose(selection_context(1, lambda tasks: []))
        assert len(chosen.clients) == count


def test_more_clients_than_there_are_cannot_be_invited() -> None:
    with pytest.raises(ConfigError, match="cannot select 9 of 4 clients"):
        UniformSelector(count=9).start(Population(sizes=np.ones(4, np.int64)))
