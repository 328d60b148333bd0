"""How long clients take, who vanishes, and the clock that follows from it: against laws and hand calculations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from winnow.config.resolve import resolve, to_toml
from winnow.core import (
    ConfigError,
    DataError,
    Failure,
    Outcome,
    Population,
    Rejected,
    Reply,
    RoundFinished,
    Selected,
    Task,
    Until,
    VirtualClock,
    Work,
)
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.fleet import Devices, ExponentialTimes, Fleet, TimeTrace
from winnow.fleet.response_time_model import TableFleet
from winnow.runs import summarise, with_communication_cost
from winnow.runs.event_log import encode_event
from winnow.simulate import SimulatedFederation
from world import BASE, blobs, experiment, prepared

TRAINING = Work(training_passes=5.0, profiling_passes=1.0, download_bytes=10**6, upload_bytes=10**6)
MANY = 20_000


def times(fleet: Fleet, round: int = 1, work: Work = TRAINING, clients: Sequence[int] | None = None) -> NDArray:
    chosen = np.arange(len(fleet)) if clients is None else np.array(clients, np.int64)
    return fleet.costs(chosen, np.full(len(chosen), 7), work, round).seconds


# Exponential times --------------------------------------------------------------------------------------------------


def test_fixed_times_are_exponential_and_the_same_in_every_round() -> None:
    fleet = ExponentialTimes().draw(MANY, 3)
    assert stats.kstest(times(fleet), "expon").pvalue > 1e-3
    np.testing.assert_array_equal(times(fleet, 1), times(fleet, 9))
    np.testing.assert_array_equal(times(fleet), times(ExponentialTimes().draw(MANY, 3)))
    assert (times(fleet) != times(ExponentialTimes().draw(MANY, 4))).all()


def test_dynamic_times_are_exponential_at_rates_that_are_uniform() -> None:
    fleet = ExponentialTimes(speeds="dynamic").draw(MANY, 3)
    assert stats.kstest(fleet.rates, stats.uniform(1 / MANY, 1 - 1 / MANY).cdf).pvalue > 1e-3
    first, second = times(fleet, 1) * fleet.rates, times(fleet, 2) * fleet.rates
    for each in (first, second):
        assert stats.kstest(each, "expon").pvalue > 1e-3
    assert stats.spearmanr(first, second).pvalue > 1e-3
    assert stats.spearmanr(first, fleet.rates).pvalue > 1e-3


def test_the_slowest_rate_is_one_in_as_many_as_there_are_clients() -> None:
    rates = np.concatenate([ExponentialTimes(speeds="dynamic").draw(4, seed).rates for seed in range(2_000)])
    assert stats.kstest(rates, stats.uniform(0.25, 0.75).cdf).pvalue > 1e-3


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.data())
def test_a_clients_time_depends_on_the_round_and_on_nobody_else(seed: int, clients: int, data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.integers(0, clients - 1), min_size=1, max_size=10))
    number = data.draw(st.integers(1, 1_000))
    world = ExponentialTimes(speeds="dynamic")
    whole = times(world.draw(clients, seed), number)
    for other in range(5):  # rounds in between must not matter, however many are remembered
        times(world.draw(clients, seed), number + other)
    np.testing.assert_array_equal(times(world.draw(clients, seed), number, clients=asked), whole[asked])


@pytest.mark.parametrize("speeds", ["fixed", "dynamic"])
def test_clients_with_corrupted_data_are_as_much_quicker_as_asked(speeds: str) -> None:
    corrupted = np.arange(50) % 3 == 0
    plain = ExponentialTimes(speeds=speeds).draw(50, 1, corrupted=corrupted)
    quicker = ExponentialTimes(speeds=speeds, corrupted_speed=4.0).draw(50, 1, corrupted=corrupted)
    np.testing.assert_allclose(times(plain) / times(quicker), np.where(corrupted, 4.0, 1.0))


def test_a_run_hands_its_fleet_whose_data_are_corrupted() -> None:
    slow, quick = (
        prepared("fleet.name=exponential", f"fleet.corrupted_speed={factor}", algorithm="fedavg") for factor in (1.0, 8)
    )
    sped_up = times(slow.federation.fleet) / times(quick.federation.fleet)
    np.testing.assert_allclose(sped_up, np.where(slow.conditions.of_client > 0, 8.0, 1.0))
    assert (slow.conditions.of_client > 0).sum() == 2


def test_the_nth_of_all_arrivals_comes_when_order_statistics_say() -> None:
    """The n-th smallest of N times from Exp(1) is 1/N + 1/(N − 1) + … + 1/(N − n + 1) on average."""
    drawn = np.sort([times(ExponentialTimes().draw(30, seed)) for seed in range(3_000)])
    expected = np.cumsum(1 / np.arange(30, 0, -1))
    np.testing.assert_allclose(drawn.mean(0), expected, atol=4.5 * drawn.std(0).max() / np.sqrt(3_000))


def test_communication_is_added_to_training_alone_and_nothing_to_do_takes_no_time() -> None:
    quiet, chatty = ExponentialTimes().draw(5, 0), ExponentialTimes(communication=10.0).draw(5, 0)
    np.testing.assert_allclose(times(chatty), times(quiet) + 10)
    profile = Work(profiling_passes=1.0, profile_bytes=100)
    np.testing.assert_array_equal(times(chatty, work=profile), times(quiet))
    assert not times(chatty, work=Work(download_bytes=100)).any()
    assert not chatty.costs(np.arange(5), np.arange(5), TRAINING).joules.any()


def test_a_million_clients() -> None:
    fleet = ExponentialTimes(speeds="dynamic", dropout=0.1).draw(1_000_000, 1)
    everyone = np.arange(len(fleet))
    assert len(times(fleet, 3)) == 1_000_000
    assert fleet.dropouts(everyone, 3).mean() == pytest.approx(0.1, abs=2e-3)


# Which world --------------------------------------------------------------------------------------------------------


def test_a_fleet_without_a_name_is_made_of_devices() -> None:
    plain = resolve({**BASE, "fleet": {"snr_db": 7.0}})
    assert plain.fleet == resolve({**BASE, "fleet": {"name": "devices", "snr_db": 7.0}}).fleet == Devices(snr_db=7.0)
    assert resolve({**BASE, "fleet": {"snr_db": 7.0}}, sets=["fleet.name=exponential"]).fleet == ExponentialTimes()
    with pytest.raises(ConfigError, match=r"unknown key fleet.snr; did you mean 'snr_db'"):
        resolve({**BASE, "fleet": {"snr": 7.0}})


# Traces -------------------------------------------------------------------------------------------------------------


def trace(folder: Path, text: str) -> TimeTrace:
    path = folder / "trace.csv"
    path.write_text(text)
    return TimeTrace(path=path)


def test_a_trace_gives_times_by_round_and_begins_again(tmp_path: Path) -> None:
    rows = "seconds,client,round\n3,0,1\n1.5,1,1\n4,0,2\n0,1,2\n"
    fleet = trace(tmp_path, rows).draw(2, 0)
    assert [times(fleet, number).tolist() for number in (1, 2, 3, 4)] == [[3, 1.5], [4, 0], [3, 1.5], [4, 0]]


def test_a_trace_without_rounds_is_the_same_in_all_of_them(tmp_path: Path) -> None:
    fleet = trace(tmp_path, "client,seconds\n1,2\n\n0,7\n2,3\n").draw(3, 0)
    assert times(fleet, 1).tolist() == times(fleet, 5).tolist() == [7, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the header must be client, seconds and optionally round; found: nothing"),
        ("client,time\n0,1\n", "found: client, time"),
        ("client,seconds\n", "the file has a header but no rows"),
        ("client,seconds\n0,1\n1,soon\n", "could not convert string 'soon'"),
        ("client,seconds\n0,1,4\n1,1,4\n", "rows have 3 cells but the header has 2 columns"),
        ("client,seconds\n0,1\n2,1\n", "data row 2: client must be a whole number from 0 to 1"),
        ("client,seconds\n0,1\n0.5,1\n", "data row 2: client must be a whole number from 0 to 1"),
        ("client,seconds\n0,-1\n1,1\n", "data row 1: seconds must be a finite number, 0 or greater"),
        ("client,seconds\n0,1\n1,nan\n", "data row 2: seconds must be a finite number, 0 or greater"),
        ("client,round,seconds\n0,0,1\n1,1,1\n", "data row 1: round must be a whole number, 1 or greater"),
        ("client,seconds\n0,1\n1,1\n0,2\n", "data row 3: duplicate entry for this client and round"),
        ("client,seconds\n0,1\n", "no time for client 1 in round 1; every client needs a row for every round"),
    ],
)
def test_a_faulty_trace_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as refusal:
        trace(tmp_path, text).draw(2, 0)
    assert "\n" not in str(refusal.value)
    assert "trace.csv" in str(refusal.value)


def test_a_trace_is_looked_for_beside_its_configuration(tmp_path: Path) -> None:
    trace(tmp_path, "client,seconds\n" + "".join(f"{k},{8 - k}\n" for k in range(8)))
    text = to_toml(experiment(algorithm="fedavg")).split("[fleet]")[0]
    (tmp_path / "mine.toml").write_text(f'{text}\n[fleet]\nname = "trace"\npath = "trace.csv"\n')
    ready = prepare_run(resolve(tmp_path / "mine.toml", algorithm="fedavg"), RunInputs(dataset=blobs()))
    assert times(ready.federation.fleet).tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    (tmp_path / "trace.csv").unlink()
    with pytest.raises(DataError, match=r"fleet.path: .*trace.csv: no such file"):
        prepare_run(resolve(tmp_path / "mine.toml", algorithm="fedavg"), RunInputs(dataset=blobs()))


# Clients that vanish ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Appointed(TableFleet):
    """A fleet in which these clients vanish in every round."""

    gone: set[int]

    def dropouts(self, clients: NDArray[np.int64], round: int) -> NDArray[np.bool_]:
        return np.isin(clients, list(self.gone))


def world_of(seconds: list[float], gone: set[int], trained: list[int], failing: set[int]) -> SimulatedFederation[None]:
    def train(tasks: Sequence[Task], site: None) -> list[Outcome]:
        trained.extend(task.client for task in tasks)
        return [
            Failure(task=task, stage="training", reason="out of memory") if task.client in failing else Reply(task=task)
            for task in tasks
        ]

    return SimulatedFederation(
        site=None,
        handlers={"train": train},
        population=Population(sizes=np.ones(len(seconds), np.int64)),
        fleet=Appointed(table=np.array([seconds]), gone=gone),
        clock=VirtualClock(50.0),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=9, unique=True), st.data())
def test_the_first_survivors_are_awaited_and_a_round_without_enough_ends_with_the_last(
    seconds: list[int], data: st.DataObject
) -> None:
    some = st.sets(st.sampled_from(range(len(seconds))))
    gone, failing = data.draw(some), data.draw(some)
    wanted = data.draw(st.none() | st.integers(1, len(seconds)))
    patience = data.draw(st.none() | st.integers(0, 100))
    in_order = sorted(range(len(seconds)), key=seconds.__getitem__)
    in_time = [k for k in in_order if patience is None or seconds[k] <= patience]
    sound = [k for k in in_time if k not in gone | failing][:wanted]
    enough = len(sound) == wanted
    last = seconds[sound[-1]] if enough else max(seconds) if len(in_time) == len(seconds) else patience

    trained: list[int] = []
    federation = world_of([float(s) for s in seconds], gone, trained, failing)
    tasks = [Task(name="train", client=k, round=1, version=0, work=TRAINING) for k in range(len(seconds))]
    with federation.dispatch(tasks, Until(replies=wanted, seconds=patience)) as exchange:
        outcomes = list(exchange)

    assert [outcome.task.client for outcome in outcomes if isinstance(outcome, Reply)] == sound
    assert federation.clock.now == 50 + last
    expected = {k for k in in_time if k not in gone and (not enough or seconds[k] <= last)}
    assert set(trained) == expected
    lost = {o.task.client for o in outcomes if isinstance(o, Failure) and o.reason == "the client dropped out"}
    assert lost == {k for k in in_time if k in gone and (not enough or seconds[k] < last)}


def test_who_vanishes_is_drawn_for_each_client_and_round() -> None:
    fleet = Devices(dropout=0.3).draw(2_000, 5)
    everyone = np.arange(2_000)
    drawn = np.array([fleet.dropouts(everyone, number) for number in range(1, 11)])
    assert drawn.mean() == pytest.approx(0.3, abs=0.015)
    np.testing.assert_allclose(np.corrcoef(drawn[0], drawn[1])[0, 1], 0, atol=0.1)
    np.testing.assert_array_equal(fleet.dropouts(everyone[::-7], 4), drawn[3][::-7])
    assert not Devices().draw(2_000, 5).dropouts(everyone, 1).any()


WORLDS = ["fleet.name=exponential", "fleet.speeds=dynamic", "fleet.dropout=0.4", "rounds=8"]


@pytest.mark.parametrize("holders", ["reference_clients=[]", "reference_clients=[1, 4]"])
@pytest.mark.parametrize(
    "algorithm", ["srpfl", "flanp-fedprof", "fedavg", "cfcfm", "fedbuff", "safa", "cyclic", "oort"]
)
def test_nothing_hangs_where_clients_vanish_and_resuming_changes_nothing(algorithm: str, holders: str) -> None:
    sets = [*WORLDS, holders]
    whole = prepared(*sets, algorithm=algorithm)
    log = list(whole.training.run(whole.federation))
    assert {event.reason for event in log if isinstance(event, Rejected)} == {
        "failed (training): the client dropped out"
    }
    first, seen = prepared(*sets, algorithm=algorithm), []
    for event in first.training.run(first.federation):
        seen.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == 4:
            break
    again = prepare_run(experiment(*sets, algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=first.snapshot())
    seen += [encode_event(event) for event in again.training.run(again.federation)]
    assert seen == [encode_event(event) for event in log]


def test_the_clock_of_a_run_with_vanishing_clients() -> None:
    """Whoever is invited is awaited until the last reply is due, whether it comes or not."""
    ready = prepared(*WORLDS, algorithm="fedavg-rp")
    fleet, now, gone = ready.federation.fleet, 0.0, 0
    events = list(ready.training.run(ready.federation))
    for invited in (event for event in events if isinstance(event, Selected)):
        [finished] = [e for e in events if isinstance(e, RoundFinished) and e.round == invited.round]
        now += fleet.seconds(invited.clients, invited.round).max()
        lost = fleet.dropouts(invited.clients, invited.round)
        assert finished.aggregated.tolist() == invited.clients[~lost].tolist()
        assert finished.at == pytest.approx(now)
        gone += lost.sum()
    assert gone > 0


def test_a_round_from_which_all_vanish_leaves_the_model_alone() -> None:
    ready = prepared("fleet.dropout=0.95", "rounds=10", algorithm="flanp")
    before, empty = ready.training.model, 0
    for event in ready.training.run(ready.federation):
        if isinstance(event, RoundFinished):
            if not len(event.aggregated):
                empty += 1
                assert ready.training.model is before
            before = ready.training.model
    assert empty > 0


# One run, any communication cost ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["flanp-fedprof", "fedavg-rp"])
def test_a_run_on_another_clock_is_the_run_with_another_communication_cost(algorithm: str, tmp_path: Path) -> None:
    sets = ["fleet.name=exponential", "fleet.speeds=dynamic", "fleet.dropout=0.2", "rounds=6"]
    free, costly = (
        run_experiment(
            experiment(*sets, f"fleet.communication={cost}", algorithm=algorithm),
            inputs=RunInputs(dataset=blobs()),
            out=tmp_path / str(cost),
        ).view
        for cost in (2.0, 100.0)
    )
    shifted = with_communication_cost(free, 100.0)
    one, other = list(shifted.events()), list(costly.events())
    assert [type(event) for event in one] == [type(event) for event in other]
    assert [event.at for event in one] == pytest.approx([event.at for event in other])
    assert shifted.summary().seconds_to_target == pytest.approx(costly.summary().seconds_to_target)
    assert shifted.summary().best == costly.summary().best
    assert free.summary().seconds + 6 * 98 == pytest.approx(costly.summary().seconds)
    assert summarise(free.events(), metric="accuracy", target=None).seconds == free.summary().seconds


@pytest.mark.parametrize(
    ("algorithm", "sets", "message"),
    [
        ("fedbuff", ["fleet.name=exponential"], "schedule.name = 'buffered': another communication cost"),
        ("fedavg", [], "fleet.name = 'devices' has no communication cost"),
    ],
)
def test_clocks_that_cannot_be_changed_afterwards(algorithm: str, sets: list[str], message: str) -> None:
    run = run_experiment(experiment(*sets, "rounds=1", algorithm=algorithm), inputs=RunInputs(dataset=blobs())).view
    with pytest.raises(ConfigError, match=message):
        with_communication_cost(run, 10.0)
