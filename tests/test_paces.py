"""Training without a common rhythm, against hand calculations on the arrivals that the fleet gives."""

import numpy as np
import pytest
import torch

from textbook import State, assert_same, mean, train_client
from winnow.core import RoundFinished, Selected, Task
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from world import blobs, experiment, prepared

UNEQUAL = "fleet.speed_ghz={mean=1.0, sd=0.5}"
FEDBUFF = ("rounds=7", "select.count=4", "schedule.buffer_size=2", UNEQUAL)
SAFA = ("rounds=7", "select.count=2", "schedule.lag_tolerance=1", UNEQUAL)


def watched(ready: PreparedRun) -> tuple[list[RoundFinished], list[tuple[float, Task]], list[State]]:
    """A run's rounds, when which task was answered (or would have been), and the model of every version."""
    arrivals, schedule = list[tuple[float, Task]](), ready.federation.schedule

    def recorded(*args):
        for arrival in schedule(*args):
            arrivals.append((arrival.at, arrival.task))
            yield arrival

    ready.federation.schedule = recorded
    models, rounds = [dict(ready.training.model)], []
    for event in ready.training.run(ready.federation):
        if isinstance(event, RoundFinished):
            rounds.append(event)
            models.append(dict(ready.training.model))
    trainings = [(at, task) for at, task in arrivals if task.name == "train"]
    return rounds, sorted(trainings, key=lambda pair: pair[0]), models


def test_fedbuff_folds_arrivals_in_order_and_discounts_late_ones() -> None:
    ready = prepared(*FEDBUFF, algorithm="fedbuff")
    rounds, arrivals, models = watched(ready)
    lateness = []
    for number, event in enumerate(rounds, 1):
        due = arrivals[2 * (number - 1) : 2 * number]
        assert event.at == due[-1][0]
        assert event.aggregated.tolist() == sorted(task.client for _, task in due)
        steps = []
        for _, task in due:
            departed, late = models[task.version], number - 1 - task.version
            own = train_client(ready, task.client, task.round, departed)
            steps.append({name: (own[name] - departed[name]) / np.sqrt(1 + late) for name in own})
            lateness.append(late)
        change = mean(steps)
        assert_same(models[number], {name: models[number - 1][name] + change[name] for name in change})
    assert max(lateness) > 0, "nobody was late, so the discount was not tested"


def test_fedbuff_keeps_as_many_at_work_as_invited() -> None:
    ready = prepared(*FEDBUFF, algorithm="fedbuff")
    sent, answered = 0, 0
    for event in ready.training.run(ready.federation):
        if isinstance(event, Selected):
            sent += int(event.counts.sum())
        if isinstance(event, RoundFinished):
            answered += len(event.aggregated)
            assert sent - answered == 4 - 1, "the last arrival of a round is replaced when the new version stands"


def test_a_machine_needs_room_for_all_that_train_at_a_time() -> None:
    at_work = {name: experiment(algorithm=name).schedule.together(3, 8) for name in ("fedavg-rp", "fedbuff", "safa")}
    assert at_work == {"fedavg-rp": 3, "fedbuff": 3, "safa": 8}


@pytest.mark.parametrize("quota", [2, 4])
def test_safa_folds_an_entry_for_every_client(quota: int) -> None:
    """A small quota leaves slow clients behind, a large one has to wait for those that were not picked before. Who lags
    too far gives up its task and begins again with the present version.
    """
    ready = prepared(*SAFA, f"select.count={quota}", algorithm="safa")
    rounds, arrivals, models = watched(ready)
    sizes = ready.federation.population.sizes
    cache = dict.fromkeys(range(8), models[0])
    picked_last, begun_at, seen = set[int](), 0.0, 0
    passed_over, given_up = 0, set[int]()
    for number, event in enumerate(rounds, 1):
        present = number - 1
        under_way = [task for at, task in arrivals if task.round < number and at > begun_at]
        for task in under_way:
            if present - task.version > 1 and task.id not in given_up:
                cache[task.client] = models[present]
                given_up.add(task.id)
                [again] = [t for _, t in arrivals if t.client == task.client and t.round == number]
                assert again.version == present
        came = [task for at, task in arrivals[seen:] if at <= event.at]
        seen += len(came)
        fresh = [task for task in came if task.id not in given_up]
        own = {task.client: train_client(ready, task.client, task.round, models[task.version]) for task in fresh}
        first = [task.client for task in fresh if task.client not in picked_last]
        again = [task.client for task in fresh if task.client in picked_last]
        picked = (first + again)[:quota]
        assert event.aggregated.tolist() == sorted(picked)
        cache |= {k: own[k] for k in picked}
        share = sizes / sizes.sum()
        expected = {name: sum(share[k] * cache[k][name] for k in range(8)) for name in models[0]}
        assert_same(models[number], expected)
        cache |= {k: own[k] for k in own if k not in picked}
        passed_over += len(own) - len(picked)
        picked_last, begun_at = set(picked), event.at
    assert given_up if quota == 2 else passed_over, "the case for which this quota stands did not come up"


@pytest.mark.parametrize(("algorithm", "sets"), [("fedbuff", FEDBUFF), ("safa", SAFA)])
@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize("select", ["uniform", "profile"])
def test_resuming_continues_what_was_under_way(algorithm: str, sets: tuple[str, ...], stop: int, select: str) -> None:
    settings = experiment(*sets, f"select.name={select}", algorithm=algorithm)
    whole = prepare_run(settings, RunInputs(dataset=blobs()))
    log = [(event.kind, event.at, event.round) for event in whole.training.run(whole.federation)]
    first, begun = prepare_run(settings, RunInputs(dataset=blobs())), []
    for event in first.training.run(first.federation):
        begun.append((event.kind, event.at, event.round))
        if isinstance(event, RoundFinished) and event.round == stop:
            break
    second = prepare_run(settings, RunInputs(dataset=blobs()), snapshot=first.snapshot())
    begun += [(event.kind, event.at, event.round) for event in second.training.run(second.federation)]
    assert begun == log
    assert all(torch.equal(t, second.training.model[name]) for name, t in whole.training.model.items())
