"""CFCFM and TiFL, against calculations by hand."""

from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from selecting import people, selection_context, trained, valued
from winnow.core import ConfigError, RoundFinished, Selected, Task
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.algorithms.cfcfm import FirstComeSelector
from winnow.learn.algorithms.tifl import TierSelector
from winnow.learn.selection import Selection
from winnow.runs.event_log import encode_event
from world import blobs, experiment, prepared

# CFCFM --------------------------------------------------------------------------------------------------------------


def merged_if_all_train(seconds: list[float], quota: int, merged_last: set[int]) -> set[int]:
    """Algorithm 1 as it stands: everybody trains, replies come one by one, those merged last time wait behind."""
    picked, behind = [], []
    for k in sorted(range(len(seconds)), key=seconds.__getitem__):
        if len(picked) == quota:
            break
        (behind if k in merged_last else picked).append(k)
    return set(picked + behind[: quota - len(picked)])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12, unique=True), st.data())
def test_those_are_merged_that_would_be_if_everybody_trained(seconds: list[float], data: st.DataObject) -> None:
    quota = data.draw(st.integers(1, len(seconds)))
    selection = FirstComeSelector(count=quota).start(people(*[1] * len(seconds)))
    expected: set[int] = set()
    for number in range(1, 6):
        invitation = selection.propose(selection_context(number))
        arrivals = sorted(invitation.clients.tolist(), key=seconds.__getitem__)
        awaited = arrivals[: invitation.until.replies]
        expected = merged_if_all_train(seconds, quota, expected)
        assert set(awaited) == expected
        selection.observe(selection_context(number), [trained(k, seconds=seconds[k]) for k in awaited])


def test_a_round_ends_with_the_last_merged_reply_and_counts_merged_clients_alone() -> None:
    ready = prepared(algorithm="cfcfm")
    events = list(ready.training.run(ready.federation))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [len(event.clients) for event in events if isinstance(event, Selected)] == [8, 5, 5, 5]
    begun, merged_last = 0.0, set[int]()
    sizes = ready.federation.population.sizes
    [work] = {task.work for task in ready.training.tasks([0], sizes)}
    costs = ready.federation.fleet.costs(np.arange(8), sizes, work)
    for event in rounds:
        merged = merged_if_all_train(costs.seconds.tolist(), 3, merged_last)
        assert set(event.aggregated.tolist()) == merged
        assert event.at - begun == pytest.approx(costs.seconds[sorted(merged)].max())
        assert event.joules == pytest.approx(costs.joules[sorted(merged)].sum())
        begun, merged_last = event.at, merged


UNEQUAL = "fleet.speed_ghz={mean=1.0, sd=0.5}"

# TiFL ---------------------------------------------------------------------------------------------------------------

SECONDS = {
    k: float((5 * k) % 12) for k in range(12)
}  # client 0 is the quickest, then 5, 10, 3, 8, 1, 6, 11, 4, 9, 2, 7
QUICK, MIDDLE, SLOW = {0, 5, 10, 3}, {8, 1, 6, 11}, {4, 9, 2, 7}
TIERS = [QUICK, MIDDLE, SLOW]


def losses_of(*by_tier: float) -> dict[int, float]:
    return {k: loss for tier, loss in zip(TIERS, by_tier, strict=True) for k in tier}


def profiled(settings: TierSelector, answering: Collection[int] = SECONDS) -> Selection:
    """After round 1, in which everybody was asked to train."""
    selection = settings.start(people(*[1] * 12))
    assert selection.propose(selection_context(1)).clients.tolist() == list(range(12))
    selection.observe(selection_context(1), [trained(k, seconds=SECONDS[k]) for k in answering])
    return selection


def begun(settings: TierSelector, *by_tier: float) -> Selection:
    selection = profiled(settings)
    selection.propose(selection_context(2, valued(losses_of(*by_tier))))
    return selection


def tiers_used(selection: Selection, numbers: range, **asked: object) -> list[int]:
    """Which tier each round's clients are from; all are from one."""
    used = []
    for number in numbers:
        clients = set(selection.propose(selection_context(number, **asked)).clients.tolist())
        [tier] = [i for i, members in enumerate(TIERS) if clients <= members]
        used.append(tier)
    return used


def test_tiers_are_as_quick_as_their_clients() -> None:
    selection = begun(TierSelector(count=2, tiers=3), 1, 1, 1)
    assert [set(np.flatnonzero(selection.state()["tier"] == tier).tolist()) for tier in range(3)] == TIERS


def test_tiers_are_by_the_time_that_training_takes() -> None:
    """In a run, against the fleet's own costs of a training task: link, speed and the number of samples count."""
    ready = prepared("rounds=2", "select.count=2", "select.tiers=4", UNEQUAL, algorithm="tifl")
    sizes = ready.federation.population.sizes
    work = ready.training.tasks([0], sizes)[0].work
    seconds = ready.federation.fleet.costs(np.arange(8), sizes, work).seconds
    events = list(ready.training.run(ready.federation))
    assert next(e.clients.tolist() for e in events if isinstance(e, Selected)) == list(range(8))
    expected = np.argsort(np.argsort(seconds)) // 2
    np.testing.assert_array_equal(ready.training.snapshot().arrays["select/tier"], expected)


def test_at_first_tiers_are_drawn_alike() -> None:
    selection = begun(TierSelector(count=2, tiers=3, interval=10_000), 3, 1, 2)
    used = Counter(tiers_used(selection, range(3, 1_003)))
    assert stats.chisquare([used[tier] for tier in range(3)]).pvalue > 1e-4


def test_a_tier_that_stops_learning_makes_the_worst_tiers_more_likely() -> None:
    """Losses 3, 1, 2 have the ranks 3, 1, 2 of 6; the next panel comes in round 10,002."""
    selection = begun(TierSelector(count=2, tiers=3, interval=10_000), 3, 1, 2)
    tiers_used(selection, range(10_002, 10_003), ask=valued(losses_of(3, 1, 2)))
    used = Counter(tiers_used(selection, range(10_003, 12_003)))
    expected = 2_000 * np.array([3, 1, 2]) / 6
    assert stats.chisquare([used[tier] for tier in range(3)], expected).pvalue > 1e-4


def test_tiers_stay_as_likely_as_they_were_while_the_one_in_use_learns() -> None:
    selection = begun(TierSelector(count=2, tiers=3, interval=10), 3, 1, 2)
    [*_, last] = tiers_used(selection, range(3, 12))
    better = [3.0, 1.0, 2.0]
    better[last] -= 0.5
    tiers_used(selection, range(12, 13), ask=valued(losses_of(*better)))
    assert selection.state()["chances"].tolist() == [1, 1, 1]
    np.testing.assert_allclose(selection.state()["losses"], better)


def test_the_panel_is_as_many_clients_of_each_tier_as_are_invited() -> None:
    heard: list[Task] = []
    selection = begun(TierSelector(count=2, tiers=3, interval=5), 1, 1, 1)
    tiers_used(selection, range(7, 8), ask=valued(losses_of(1, 1, 1), heard=heard))
    assert sorted(i for task in heard for i, members in enumerate(TIERS) if task.client in members) == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_tiers_loss_is_the_mean_over_its_samples_and_passes_over_what_is_not_finite() -> None:
    selection = TierSelector(count=2, tiers=2).start(people(1, 3, 5, 7))
    losses = {0: 1.0, 1: 2.0, 2: np.nan, 3: 4.0}
    selection.observe(selection_context(1), [trained(k, seconds=float(k)) for k in range(4)])
    selection.propose(selection_context(2, valued(losses)))
    np.testing.assert_allclose(selection.state()["losses"], [(1 * 1 + 3 * 2) / 4, 4.0])


def test_credits_limit_how_often_a_tier_is_used() -> None:
    selection = begun(TierSelector(count=2, tiers=3, interval=10_000, credits=(5, 3, 2)), 1, 1, 1)
    first = selection.state()["used"].tolist()
    used = first + tiers_used(selection, range(3, 22))
    assert Counter(used[:10]) == Counter(used[10:]) == {0: 5, 1: 3, 2: 2}


def test_who_does_not_answer_at_first_is_left_out_for_good() -> None:
    selection = profiled(TierSelector(count=2, tiers=3), set(range(12)) - {0, 7})
    losses = valued(losses_of(1, 1, 1))
    clients = [selection.propose(selection_context(number, losses)).clients for number in range(2, 100)]
    assert set(np.concatenate(clients).tolist()) == set(range(12)) - {0, 7}


def test_if_nobody_answers_at_first_everybody_is_asked_again() -> None:
    assert profiled(TierSelector(count=2), ()).propose(selection_context(2)).clients.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["schedule.name=buffered"], "requires schedule.name = 'rounds'"),
        (["select.name=doubling", "select.sample.name=tier"], "waits for everybody in round 1"),
    ],
)
def test_round_1_must_wait_for_everybody(sets: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        experiment(*sets, algorithm="tifl").composed()


def test_there_are_no_more_tiers_than_can_fill_an_invitation() -> None:
    selection, losses = profiled(TierSelector(count=5)), valued(losses_of(1, 1, 1))
    assert all(len(selection.propose(selection_context(n, losses)).clients) == 5 for n in range(2, 9))
    with pytest.raises(ConfigError, match=r"select\.credits: has 3 numbers, but there are 2 tiers"):
        TierSelector(count=5, credits=(1, 1, 1)).start(people(*[1] * 12))


# Both ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "sets"),
    [
        ("tifl", ["select.interval=1", "select.credits=[3, 2]"]),
        ("oort", ["select.pacer_window=1", "select.exploration=0.3", "select.max_participations=2"]),
        ("cfcfm", ["select.count=5"]),
    ],
)
def test_all_that_a_selection_has_learnt_survives_an_interruption(algorithm: str, sets: list[str]) -> None:
    sets = ["rounds=8", *sets]
    whole = prepared(*sets, algorithm=algorithm)
    log = [encode_event(event) for event in whole.training.run(whole.federation)]
    first, seen = prepared(*sets, algorithm=algorithm), []
    for event in first.training.run(first.federation):
        seen.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == 5:
            break
    again = prepare_run(experiment(*sets, algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=first.snapshot())
    assert seen + [encode_event(event) for event in again.training.run(again.federation)] == log
