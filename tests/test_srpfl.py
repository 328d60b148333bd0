"""SRPFL's participation against hand calculations: who is awaited, when a round ends, what is folded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_point import ByHand, played, ready, vector
from selecting import people, selection_context, trained
from winnow.config.resolve import resolve
from winnow.core import ConfigError, RoundFinished, Scored, Selected
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.algorithms.fedprof import ProfileSelector
from winnow.learn.algorithms.srpfl import DoublingSelector
from winnow.learn.selection import SelectedClients, Selection, UniformSelector
from winnow.runs.event_log import encode_event
from world import BASE, blobs, experiment, prepared

DYNAMIC = ["fleet.name=exponential", "fleet.speeds=dynamic"]
FIXED = ["fleet.name=exponential", "fleet.speeds=fixed"]


def invitations(
    selection: Selection, rounds: int, loss: Callable[[int], float] = lambda _: 1.0, begin: int = 1
) -> list[SelectedClients]:
    """What is proposed while the first of the invited answer, with the loss of that round."""
    proposed = []
    for number in range(begin, begin + rounds):
        proposed.append(selection.propose(selection_context(number)))
        awaited = proposed[-1].clients[: proposed[-1].until.replies].tolist()
        selection.observe(selection_context(number), [trained(k, round=number, loss=loss(number)) for k in awaited])
    return proposed


def awaited(proposed: list[SelectedClients]) -> list[int | None]:
    return [invitation.until.replies for invitation in proposed]


# Stages -------------------------------------------------------------------------------------------------------------


def test_the_authors_stages() -> None:
    """10, 20, 40, 80, 100 of 100 clients, ten rounds each."""
    proposed = invitations(DoublingSelector(fraction=1.0).start(people(*[1] * 100)), 55)
    assert awaited(proposed) == [10] * 10 + [20] * 10 + [40] * 10 + [80] * 10 + [100] * 15
    assert all(invitation.clients.tolist() == list(range(100)) for invitation in proposed)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(0, 30))
def test_the_number_doubles_up_to_everybody(first: int, count: int, rounds_per_stage: int, before: int) -> None:
    population = people(*[1] * 40)
    doubling = DoublingSelector(count=count, first_stage_clients=first, rounds_per_stage=rounds_per_stage)
    selection = doubling.start(population)
    proposed = invitations(selection, before)
    continued = doubling.start(population)
    continued.restore(selection.state())
    proposed += invitations(continued, 5, begin=before + 1)
    assert awaited(proposed) == [min(count, first * 2 ** (t // rounds_per_stage)) for t in range(before + 5)]
    assert all(len(invitation.clients) == count for invitation in proposed)


def test_a_stage_ends_when_the_loss_is_low_enough_for_so_many() -> None:
    """The targets of 2, 4, 8 and 8 clients are 0.8, 0.4, 0.2 and 0.2; rounds 5 and 8 end stages by their number."""
    losses = {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.5, 5: 0.45, 6: 0.3, 7: np.nan, 8: 0.25, 9: 0.1}
    selection = DoublingSelector(count=8, first_stage_clients=2, rounds_per_stage=3, stage_target=0.8).start(
        people(*[1] * 10)
    )
    assert awaited(invitations(selection, 9, losses.__getitem__)) == [2, 2, 4, 4, 4, 8, 8, 8, 8]
    early = DoublingSelector(count=8, first_stage_clients=1, stage_target=100.0).start(people(*[1] * 10))
    assert awaited(invitations(early, 5)) == [1, 2, 4, 8, 8]


def test_a_round_that_nobody_answered_meets_no_target() -> None:
    selection = DoublingSelector(count=8, first_stage_clients=1, stage_target=100.0).start(people(*[1] * 10))
    selection.observe(selection_context(1), [])
    assert selection.propose(selection_context(2)).until.replies == 1


# The sample ---------------------------------------------------------------------------------------------------------


def test_clients_are_renewed_in_each_round_or_for_each_stage() -> None:
    def drawn(renew: Any) -> list[tuple[int, ...]]:
        selection = DoublingSelector(count=5, first_stage_clients=1, rounds_per_stage=3, resample_every=renew).start(
            people(*[1] * 1_000)
        )
        return [tuple(invitation.clients.tolist()) for invitation in invitations(selection, 12)]

    by_round, by_stage = drawn("round"), drawn("stage")
    assert len(set(by_round)) == 12
    assert [by_stage.count(clients) for clients in dict.fromkeys(by_stage)] == [3, 3, 3, 3]
    assert by_stage[::3] == by_round[::3]


def test_any_selection_draws_the_sample() -> None:
    by_size = DoublingSelector(count=1, sample={"name": "size"}).start(people(1, 1, 97, 1))
    drawn = np.concatenate([invitation.clients for invitation in invitations(by_size, 400)])
    assert (drawn == 2).mean() == pytest.approx(0.97, abs=0.04)
    with_replacement = DoublingSelector(count=50, first_stage_clients=4, replacement=True).start(people(1, 1, 1))
    [once] = invitations(with_replacement, 1)
    assert (once.counts.sum(), once.until.replies) == (50, 3)


def test_first_come_first_merged_goes_inside() -> None:
    selection = DoublingSelector(count=4, first_stage_clients=1, rounds_per_stage=1, sample="first-come").start(
        people(*[1] * 10)
    )
    proposed = invitations(selection, 4)
    assert awaited(proposed) == [1, 2, 4, 4]
    assert [len(invitation.clients) for invitation in proposed] == [10, 9, 8, 6]


def test_the_sample_is_as_large_as_the_whole_says() -> None:
    doubling = DoublingSelector(fraction=0.2, sample={"name": "profile", "alpha": 3.0})
    assert doubling.sample == ProfileSelector(fraction=0.2, alpha=3.0)
    assert DoublingSelector.model_validate(doubling.model_dump()) == doubling
    assert "fraction" not in doubling.model_dump()["sample"]
    assert (
        DoublingSelector(count=3, sample=UniformSelector(count=3)).sampler
        == DoublingSelector(count=3).sampler
        == UniformSelector(count=3)
    )


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["select.sample={name='uniform', count=2}"], "select: sample: leave out fraction, count, replacement"),
        (["select.sample={name='profile', alpha=-1.0}"], r"select.sample.alpha = -1.0: must be at least"),
        (["select.sample=doubling"], "'doubling' cannot contain itself"),
        (["select.sample=fastest"], r"select.sample.name = 'fastest' is unknown"),
        (["schedule.name=buffered"], r"select.name = 'doubling' requires schedule.name = 'rounds'; it is 'buffered'"),
    ],
)
def test_what_cannot_work_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(*sets, algorithm="flanp")


def test_how_many_are_sampled_is_asked_of_the_whole() -> None:
    with pytest.raises(ConfigError, match=r"select: set fraction or count, not both$"):
        resolve({**BASE, "select": {"sample": "profile", "fraction": 0.5, "count": 3}}, algorithm="flanp")
    chosen = resolve({**BASE, "select": {"sample": "profile"}}, algorithm="flanp").select
    assert isinstance(chosen, DoublingSelector)
    assert (chosen.cohort_size(7), chosen.sampler.cohort_size(7)) == (7, 7)


def test_another_sample_leaves_behind_what_only_the_former_one_knew() -> None:
    """As with whole parts, changing the name is enough."""
    changed = experiment("select.sample.name=size", "select.count=4", algorithm="srpfl-fedprof")
    assert changed.select == DoublingSelector(count=4, sample={"name": "size"})
    file = {
        **BASE,
        "algorithm": "mine",
        "base": "flanp",
        "select": {"count": 4, "sample": {"name": "profile", "alpha": 3.0}},
    }
    assert resolve(file, sets=["select.sample.name=uniform"]).select == DoublingSelector(
        count=4, sample={"name": "uniform"}
    )
    kept = resolve(file, sets=["select.sample.profile_comparison=plain"]).select
    assert kept.sample == ProfileSelector(count=4, alpha=3.0)


def test_a_rule_that_compares_updates_needs_enough_of_them_from_the_start() -> None:
    with pytest.raises(ConfigError, match=r"'krum' needs 3 updates .* the first rounds wait for 1 only; raise select"):
        prepared("aggregate.name=krum", algorithm="flanp")
    prepared("aggregate.name=krum", "select.first_stage_clients=3", algorithm="flanp")


def test_profiles_behind_private_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"select.layer: layer '1' .*; choose a layer before the private part"):
        prepared("select.sample=profile", algorithm="lg-srpfl")


# Runs ---------------------------------------------------------------------------------------------------------------


def rounds_of(run: PreparedRun) -> list[tuple[Selected, RoundFinished]]:
    events = list(run.training.run(run.federation))
    invited = [event for event in events if isinstance(event, Selected)]
    return list(zip(invited, (event for event in events if isinstance(event, RoundFinished)), strict=True))


@pytest.mark.parametrize("algorithm", ["srpfl", "lg-srpfl", "flanp"])
@pytest.mark.parametrize("speeds", [FIXED, DYNAMIC], ids=["fixed", "dynamic"])
def test_the_clock_is_the_sum_of_order_statistics(algorithm: str, speeds: list[str]) -> None:
    stages = [
        "select.count=7",
        "select.first_stage_clients=1",
        "select.rounds_per_stage=2",
        "rounds=9",
        "fleet.communication=0.5",
    ]
    run = prepared(*speeds, *stages, algorithm=algorithm)
    now = 0.0
    for (invited, finished), n in zip(rounds_of(run), [1, 1, 2, 2, 4, 4, 7, 7, 7], strict=True):
        times = run.federation.fleet.seconds(invited.clients, invited.round)
        fastest = np.argsort(times)[:n]
        now += times[fastest[-1]] + 0.5
        assert finished.aggregated.tolist() == sorted(invited.clients[fastest].tolist())
        assert finished.at == pytest.approx(now)


def test_the_model_is_the_mean_of_the_fastest() -> None:
    """FLANP, round by round in NumPy: only the replies that are awaited move the model."""
    run = ready(
        "flanp", *DYNAMIC, "select.count=4", "select.first_stage_clients=1", "select.rounds_per_stage=1", "rounds=4"
    )
    hand, theta, fleet = ByHand.of(run), vector(run.training.model), run.federation.fleet
    for number, (_, folded, model) in enumerate(played(run), start=1):
        fastest = np.sort(np.argsort(fleet.seconds(np.arange(4), number))[: min(4, 2 ** (number - 1))])
        assert folded == fastest.tolist()
        theta = np.average([hand.train(k, theta) for k in fastest], axis=0, weights=hand.sizes[fastest])
        np.testing.assert_allclose(model, theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("doubled", "plain"), [("srpfl", "fedrep"), ("lg-srpfl", "lg-fedavg"), ("flanp", "fedavg-rp")])
def test_with_everybody_from_the_start_it_is_the_method_itself(doubled: str, plain: str) -> None:
    one, other = prepared("select.first_stage_clients=3", algorithm=doubled), prepared(algorithm=plain)
    logs = [[encode_event(event) for event in run.training.run(run.federation)] for run in (one, other)]
    assert logs[0] == logs[1]


def test_early_stages_take_the_fastest_of_the_good() -> None:
    """Noisy clients are much quicker. Drawn uniformly they fill the first stage, drawn by profile they do not."""
    world = [
        *FIXED,
        "fleet.corrupted_speed=40.0",
        "data.clients=20",
        "select.count=8",
        "select.first_stage_clients=2",
        "rounds=10",
    ]

    def share(algorithm: str, *sets: str) -> float:
        run = prepared(*world, *sets, algorithm=algorithm)
        folded = np.concatenate([finished.aggregated for _, finished in rounds_of(run)])
        return float((run.conditions.of_client[folded] > 0).mean())

    assert share("flanp") > 0.6
    assert share("flanp-fedprof", "select.sample.alpha=50.0") < 0.2


def test_scores_are_told_when_clients_are_drawn() -> None:
    run = prepared("select.resample_every=stage", "select.rounds_per_stage=2", algorithm="srpfl-fedprof")
    scored = [event.round for event in run.training.run(run.federation) if isinstance(event, Scored)]
    assert scored == [1, 3]


@pytest.mark.parametrize("stop", [1, 2, 5])
@pytest.mark.parametrize("renew", ["round", "stage"])
@pytest.mark.parametrize("algorithm", ["srpfl", "srpfl-fedprof"])
def test_stages_survive_an_interruption(algorithm: str, renew: str, stop: int) -> None:
    sets = [
        *DYNAMIC,
        f"select.resample_every={renew}",
        "select.rounds_per_stage=2",
        "select.stage_target=0.9",
        "rounds=7",
    ]
    whole = prepared(*sets, algorithm=algorithm)
    log = [encode_event(event) for event in whole.training.run(whole.federation)]
    first, seen = prepared(*sets, algorithm=algorithm), []
    for event in first.training.run(first.federation):
        seen.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == stop:
            break
    again = prepare_run(experiment(*sets, algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=first.snapshot())
    assert seen + [encode_event(event) for event in again.training.run(again.federation)] == log
