"""AFL, power of choice and Oort, against calculations by hand."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.nn import functional

from selecting import MESSAGE_BYTES, people, selection_context, trained, valued
from winnow.core import ConfigError, RoundFinished, Task
from winnow.learn.algorithms.active_fl import ValuationSelector
from winnow.learn.algorithms.oort import UtilitySelector
from winnow.learn.algorithms.power_of_choice import PowerOfChoiceSelector
from winnow.learn.handlers import SEED_BYTES
from winnow.learn.selection import Selection
from world import experiment, prepared

# AFL ----------------------------------------------------------------------------------------------------------------

LOSSES = {0: 0.5, 1: 2.0, 2: 1.0, 3: 4.0}
SIZES = (100, 25, 64, 4)
VALUATIONS = np.array([5.0, 10.0, 8.0, 8.0])  # √100·0.5, √25·2, √64·1, √4·4


def test_valuations_are_drawn_by_after_the_smallest_are_left_out() -> None:
    selection = ValuationSelector(count=1, alpha1=0.25, alpha2=0.3, alpha3=0.0).start(people(*SIZES))
    scores = selection.propose(selection_context(1, valued(LOSSES))).scores
    weights = np.where(VALUATIONS == 5, 0, np.exp(0.3 * VALUATIONS))
    np.testing.assert_allclose(scores, weights / weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(selection.state()["valuations"], VALUATIONS)


def test_a_valuation_is_renewed_by_those_who_trained() -> None:
    selection = ValuationSelector(count=1).start(people(*SIZES))
    first = selection_context(1, valued(LOSSES))
    selection.propose(first)
    selection.observe(first, [trained(1, start_loss=0.2), trained(3, start_loss=np.nan)])
    np.testing.assert_allclose(selection.state()["valuations"], [5.0, 5 * 0.2, 8.0, 0.0])


def test_a_tenth_of_the_invited_is_drawn_from_everyone_else() -> None:
    """20 of 40 clients are left out, so they can only be among the α3·K = 2 that are drawn uniformly."""
    losses = {k: float(k) for k in range(40)}
    selection = ValuationSelector(count=10, alpha1=0.5, alpha3=0.2).start(people(*[1] * 40))
    left_out = [
        int((selection.propose(selection_context(1, valued(losses), seed=seed)).clients < 20).sum())
        for seed in range(400)
    ]
    # Two of the 32 that are left after 8 of the upper 20 are drawn: hypergeometric, 20 of 32 are from the lower half.
    expected = [400 * stats.hypergeom.pmf(n, 32, 20, 2) for n in range(3)]
    assert stats.chisquare([left_out.count(n) for n in range(3)], expected).pvalue > 1e-4


def test_no_more_are_left_out_than_can_be_spared() -> None:
    selection = ValuationSelector(count=3, alpha3=0.0).start(people(*SIZES))
    assert selection.propose(selection_context(1, valued(LOSSES))).clients.tolist() == [1, 2, 3]


def test_equal_valuations_leave_out_no_client_for_its_number() -> None:
    seen: Counter[int] = Counter()
    for seed in range(400):
        selection = ValuationSelector(count=1).start(people(*[1] * 8))
        seen.update(
            selection.propose(selection_context(1, valued(dict.fromkeys(range(8), 1.0)), seed=seed)).clients.tolist()
        )
    assert stats.chisquare([seen[k] for k in range(8)]).pvalue > 1e-4


def test_afl_in_a_run_knows_the_loss_of_the_model_each_client_received() -> None:
    """Those who trained in round 2 valued version 1, the others version 0; a plain forward pass gives the same."""
    ready = prepared("rounds=2", algorithm="afl")
    versions, last = [ready.training.model], None
    for event in ready.training.run(ready.federation):
        if isinstance(event, RoundFinished):
            versions.append(ready.training.model)
            last = event
    assert last is not None
    data, valuations = ready.federation.site.data, ready.training.snapshot().arrays["select/valuations"]
    for client in range(8):
        ready.module.load_state_dict(versions[int(client in last.aggregated)])
        rows = torch.as_tensor(data.rows_of(client))
        with torch.no_grad():
            loss = functional.cross_entropy(ready.module(data.x[rows]), data.y[rows], reduction="sum")
        assert valuations[client] == pytest.approx(loss.item() / len(rows) ** 0.5, rel=1e-5)
    assert last.cost.profiling_joules > 0


# Power of choice ----------------------------------------------------------------------------------------------------


def test_of_the_candidates_those_with_the_highest_losses_are_invited() -> None:
    losses = {k: float((7 * k) % 20) for k in range(20)}
    selection = PowerOfChoiceSelector(count=3, candidate_factor=2.5).start(people(*range(1, 21)))
    for number in range(1, 30):
        heard: list[Task] = []
        invited = selection.propose(selection_context(number, valued(losses, heard=heard))).clients
        candidates = [task.client for task in heard]
        assert len(set(candidates)) == 8  # round(2.5·3)
        assert set(invited.tolist()) == set(sorted(candidates, key=losses.__getitem__)[-3:])


def test_candidates_are_drawn_by_the_size_of_their_data() -> None:
    selection = PowerOfChoiceSelector(count=1, candidate_factor=1).start(people(1, 2, 3, 4))
    seen: Counter[int] = Counter()
    for seed in range(2_000):
        seen.update(
            selection.propose(selection_context(2, valued(dict.fromkeys(range(4), 1.0)), seed=seed)).clients.tolist()
        )
    assert stats.chisquare([seen[k] for k in range(4)], 200 * np.array([1, 2, 3, 4])).pvalue > 1e-4


def test_candidates_without_a_finite_loss_come_last() -> None:
    selection = PowerOfChoiceSelector(count=2, candidate_factor=10).start(people(1, 1, 1, 1))
    losses = {0: np.nan, 1: 0.1, 3: 0.2}  # client 2 does not answer
    assert selection.propose(selection_context(2, valued(losses))).clients.tolist() == [1, 3]


@pytest.mark.parametrize(("number", "downloaded"), [(1, SEED_BYTES), (2, MESSAGE_BYTES)])
def test_asking_costs_a_download_and_a_pass(number: int, downloaded: int) -> None:
    heard: list[Task] = []
    PowerOfChoiceSelector(count=1).start(people(1, 1, 1)).propose(selection_context(number, valued({}, heard=heard)))
    assert {(t.work.download_bytes, t.work.profiling_passes, t.work.training_passes) for t in heard} == {
        (downloaded, 1, 0)
    }
    assert all(("model" in task.payload) == (number > 1) for task in heard)


# Oort ---------------------------------------------------------------------------------------------------------------

GREEDY = {"exploration": 0.0, "exploration_min": 0.0, "cut_off": 1.0, "overcommit": 1.0, "explore_by": "uniform"}
"""No chance is left: the best are invited."""


def tried(settings: UtilitySelector, sizes: list[int], rms: list[float], seconds: list[float]) -> Selection:
    """Client k took part in round k + 1."""
    selection = settings.start(people(*sizes))
    for k, (loss, took) in enumerate(zip(rms, seconds, strict=True)):
        selection.observe(selection_context(k + 1), [trained(k, round=k + 1, seconds=took, start_loss_rms=loss)])
    return selection


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.01, 10), st.floats(0.1, 100)), min_size=3, max_size=12),
    st.integers(1, 3),
)
def test_the_best_by_the_papers_utility_are_invited(clients: list[tuple[int, float, float]], count: int) -> None:
    sizes, rms, seconds = map(list, zip(*clients, strict=True))
    number = len(clients) + 5
    invited = (
        tried(UtilitySelector(count=count, **GREEDY), sizes, rms, seconds).propose(selection_context(number)).clients
    )
    statistical = [n * loss for n, loss in zip(sizes, rms, strict=True)]
    ceiling, preferred = np.quantile(statistical, 0.95), np.percentile(seconds, 30)
    lowest, utility = min(statistical), []
    for k, took in enumerate(seconds):
        normalised = (min(statistical[k], ceiling) - lowest) / (ceiling - lowest) if ceiling > lowest else 0
        value = normalised + (0.1 * np.log(number) / (k + 1)) ** 0.5
        utility.append(value * (preferred / took) ** 2 if took > preferred else value)
    assert sorted(np.array(utility)[invited]) == pytest.approx(sorted(utility)[-count:], rel=1e-9)


def test_the_unit_of_a_loss_does_not_matter() -> None:
    """Normalised, utilities of a million times the size are as important beside staleness as before."""
    sizes, rms = [5, 3, 8, 4], np.array([0.2, 0.5, 0.1, 0.4])
    chosen = [
        tried(UtilitySelector(count=2, **GREEDY), sizes, (scale * rms).tolist(), [1, 1, 1, 1])
        .propose(selection_context(9))
        .clients.tolist()
        for scale in (1e-3, 1, 1e6)
    ]
    assert chosen[0] == chosen[1] == chosen[2]


def test_one_reported_loss_does_not_press_all_others_to_zero() -> None:
    """Clients 1 and 2 have high losses, 0 is the stalest, and the last one lies. Divided by the liar's utility, all
    others would be 0, and staleness alone would decide: for 0 and 1.
    """
    selection = tried(UtilitySelector(count=2, **GREEDY), [1] * 44, [1.0, 3.0, 2.0, *[1.0] * 40, 1e30], [1.0] * 44)
    assert selection.propose(selection_context(10_000)).clients.tolist() == [1, 2]


def test_the_cut_off_lets_in_whoever_comes_near_the_best() -> None:
    """In round 1 nobody is stale. Utilities 100, 96, 94 and 0 are 1, 0.96, 0.94 and 0 when normalised: of the first
    two, both reach 95 % of 1 and are drawn by utility; the others do not.
    """
    some = UtilitySelector(count=1, clip_quantile=1, **GREEDY | {"cut_off": 0.95})
    selection = tried(some, [100, 96, 94, 1], [1, 1, 1, 0], [1, 1, 1, 1])
    seen = Counter(int(selection.propose(selection_context(1, seed=seed)).clients[0]) for seed in range(2_000))
    assert seen[2] == seen[3] == 0
    assert stats.chisquare([seen[0], seen[1]], [2_000 * 100 / 196, 2_000 * 96 / 196]).pvalue > 1e-4


@pytest.mark.parametrize(("number", "untried"), [(1, 90), (2, 88), (40, 41), (200, 20)])
def test_exploration_falls_to_its_floor(number: int, untried: int) -> None:
    """100·0.9·0.98^(R−1) of the invited were never tried: 90, 88.2, 40.9 and, at the floor, 20."""
    selection = UtilitySelector(count=100, overcommit=1, explore_by="uniform").start(people(*[5] * 1_000))
    selection.observe(selection_context(1), [trained(k, start_loss_rms=1.0) for k in range(500)])
    assert (selection.propose(selection_context(number)).clients >= 500).sum() == untried


def test_more_are_invited_than_are_awaited() -> None:
    """1.3 K with K = 10, and no more than there are."""
    for clients, invited in ((50, 13), (11, 11)):
        drawn = (
            UtilitySelector(count=10, explore_by="uniform").start(people(*[5] * clients)).propose(selection_context(1))
        )
        assert (len(drawn.clients), drawn.until.replies) == (invited, 10)


def test_who_was_too_late_counts_as_tried_and_as_slow() -> None:
    """Clients 0 and 1 answer after 2 and 4 seconds with utilities 10 and 30; 2 was invited, too, and 3 was not."""
    selection = UtilitySelector(count=2, overcommit=1.5, explore_by="uniform").start(people(10, 10, 10))
    assert selection.propose(selection_context(1)).clients.tolist() == [0, 1, 2]
    replies = [trained(0, seconds=2.0, start_loss_rms=1.0), trained(1, seconds=4.0, start_loss_rms=3.0)]
    selection.observe(selection_context(1), replies)
    state = selection.state()
    assert state["utility"].tolist() == [10, 30, 20]
    assert state["seconds"].tolist() == [2, 4, 4]
    assert state["last"].tolist() == [1, 1, 1]
    assert state["times"].tolist() == [1, 1, 0]


def test_those_never_tried_are_drawn_by_speed_and_size() -> None:
    """Of the times 1, 2, 4, 8 the 30th percentile is 1.9; weights are n·(1.9/t)² where t is more."""
    sizes, seconds = (10, 30, 20, 40), (1.0, 2.0, 4.0, 8.0)
    heard: list[Task] = []
    ask = valued(dict.fromkeys(range(4), 1.0), dict(enumerate(seconds)), heard)
    seen: Counter[int] = Counter()
    for seed in range(1_000):
        selection = UtilitySelector(count=1, overcommit=1).start(people(*sizes))
        seen[int(selection.propose(selection_context(1, ask, seed=seed)).clients[0])] += 1
    assert [task.client for task in heard[:4]] == [0, 1, 2, 3]
    assert {(task.work.download_bytes, "model" in task.payload) for task in heard[:4]} == {(MESSAGE_BYTES, True)}
    weights = np.array([n * min(1, 1.9 / t) ** 2 for n, t in zip(sizes, seconds, strict=True)])
    assert stats.chisquare([seen[k] for k in range(4)], 1_000 * weights / weights.sum()).pvalue > 1e-4


def test_clients_are_timed_once_and_who_does_not_answer_is_slow() -> None:
    heard: list[Task] = []
    ask = valued({0: 1.0, 1: 1.0}, {0: 1.0, 1: 100.0}, heard)
    selection = UtilitySelector(count=1, overcommit=1, penalty=50).start(people(1, 1, 1))
    assert all(selection.propose(selection_context(1, ask, seed=seed)).clients.tolist() == [0] for seed in range(20))
    assert len(heard) == 3


def test_at_first_everybody_is_explored() -> None:
    assert (
        len(set(UtilitySelector(count=10, **GREEDY).start(people(*[5] * 12)).propose(selection_context(1)).clients))
        == 10
    )


def test_the_pacer_allows_for_slower_clients_when_utility_falls() -> None:
    """Also where the run is interrupted after every round."""
    settings_ = UtilitySelector(count=1, pacer_window=2, pacer_step=10)
    selection, preferred = settings_.start(people(1)), []
    for number, loss in enumerate([9, 9, 5, 5, 6, 6, 1, 1], start=1):
        selection.observe(selection_context(number), [trained(0, round=number, start_loss_rms=float(loss))])
        state = selection.state()
        preferred.append(float(state["preferred"][0]))
        selection = settings_.start(people(1))
        selection.restore(state)
    assert preferred == [30, 30, 30, 40, 40, 40, 40, 50]


def test_who_took_part_too_often_is_left_out_while_others_remain() -> None:
    selection = UtilitySelector(count=1, max_participations=2, **GREEDY).start(people(9, 5, 1))
    chosen = []
    for number in range(1, 9):
        selection.observe(
            selection_context(number), [trained(k, start_loss_rms=1.0) for k in range(3)] if number == 1 else []
        )
        clients = selection.propose(selection_context(number)).clients.tolist()
        selection.observe(selection_context(number), [trained(k, start_loss_rms=1.0) for k in clients])
        chosen += clients
    assert chosen == [0, 0, 1, 1, 2, 2, 0, 0]  # then everybody is on the list, which is lifted


def test_a_loss_that_is_not_finite_has_no_utility() -> None:
    selection = tried(UtilitySelector(count=2, **GREEDY), [1, 1, 1], [np.inf, 0.5, 0.5], [1, 1, 1])
    assert selection.propose(selection_context(9)).clients.tolist() == [1, 2]


# All ----------------------------------------------------------------------------------------------------------------


def test_who_cannot_be_drawn_twice_is_not_drawn_with_replacement() -> None:
    with pytest.raises(ConfigError, match="does not support replacement"):
        experiment("select.replacement=true", algorithm="afl")
