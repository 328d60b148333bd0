"""Homomorphic aggregation as a `collect`: the same learning, and a server that never has a key to what it adds up."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

import winnow
from winnow.core import (
    UNTIL_ALL,
    ConfigError,
    Failure,
    Federation,
    Outcome,
    Rejected,
    Reply,
    RoundFinished,
    Task,
    Until,
)
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.privacy import ckks
from winnow.privacy.homomorphic.homomorphic_collect import HomomorphicAggregation
from winnow.privacy.homomorphic.site import CIPHERTEXTS, DECRYPT, ENCRYPT, MAKE_KEY, HomomorphicSite
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.runs.event_log import encode_event
from world import blobs, experiment, prepared

HOMOMORPHIC = ("collect={name='homomorphic', key_holder=1}", "select.count=5")


def events_of(ready: PreparedRun, federation: Federation | None = None) -> list[Any]:
    return list(ready.training.run(federation or ready.federation))


def rounds_of(events: Iterable[Any]) -> list[RoundFinished]:
    return [event for event in events if isinstance(event, RoundFinished)]


def reasons_of(events: Iterable[Any]) -> dict[int, str]:
    return {event.client: event.reason for event in events if isinstance(event, Rejected)}


class Meddling:
    """A federation on whose way to the workflow outcomes are watched, and may be changed."""

    def __init__(self, federation: Federation, change: Callable[[Outcome], Outcome]) -> None:
        self._federation, self._change = federation, change
        self.population, self.clock, self.settle = federation.population, federation.clock, federation.settle
        self.randomness, self.simulated = federation.randomness, federation.simulated
        self.seen: list[Outcome] = []

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> Any:
        return _Meddled(self._federation.dispatch(tasks, until), self)

    def changed(self, outcome: Outcome) -> Outcome:
        self.seen.append(outcome)
        return self._change(outcome)


class _Meddled:
    def __init__(self, exchange: Any, by: Meddling) -> None:
        self._exchange, self._by = exchange, by

    def __iter__(self) -> Iterator[Outcome]:
        return map(self._by.changed, self._exchange)

    def __enter__(self) -> "_Meddled":
        return self

    def __exit__(self, *_: object) -> None:
        self._exchange.close()


# What it weighs -------------------------------------------------------------------------------------------------------


def test_ciphertexts_weigh_as_much_more_as_the_fleet_says_that_the_model_does() -> None:
    uploads = []
    for sets in ((), ("fleet.message_mb=2.0",)):
        ready = prepared(*HOMOMORPHIC, *sets, algorithm="fedavg", rounds=1)
        watched = Meddling(ready.federation, lambda outcome: outcome)
        events_of(ready, watched)
        uploads.append({seen.task.work.upload_bytes for seen in watched.seen if seen.task.name == ENCRYPT})
    (real,), (stated,) = uploads
    assert stated == round(real * 2e6 / (4 * (5 * 12 + 12 + 12 * 3 + 3)))


# Learning -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprof", "fedadam", "scaffold", "fednova", "fedrep"])
def test_an_algorithm_on_sums_learns_what_it_learns_in_the_clear(algorithm: str) -> None:
    plain = prepared("rounds=2", "select.count=5", algorithm=algorithm)
    private = prepared("rounds=2", *HOMOMORPHIC, algorithm=algorithm)
    in_the_clear, in_secret = events_of(plain), events_of(private)
    assert reasons_of(in_secret) == {}
    assert [e.aggregated.tolist() for e in rounds_of(in_the_clear)] == [
        e.aggregated.tolist() for e in rounds_of(in_secret)
    ]
    one, other = plain.training.model, private.training.model
    assert max((one[name].double() - other[name].double()).abs().max() for name in one) < 1e-5


def test_one_round_differs_from_the_plain_mean_by_no_more_than_the_stated_rounding() -> None:
    """Half a step of rounding for each client's weighted value, over the sum of weights that is at least 1."""
    plain = prepared("rounds=1", "select.count=5", algorithm="fedavg-rp")
    private = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp")
    events_of(plain)
    events_of(private)
    one, other = plain.training.model, private.training.model
    apart = max((one[name].double() - other[name].double()).abs().max() for name in one)
    assert apart <= 5 * 2.0**-23 + 2.0**-22  # and float32's own rounding of numbers up to 2


def test_a_seed_repeats_and_resuming_equals_no_interruption() -> None:
    whole = prepared(*HOMOMORPHIC, "rounds=3", algorithm="fedavg-rp")
    log = [encode_event(event) for event in events_of(whole)]
    first, begun = prepared(*HOMOMORPHIC, "rounds=3", algorithm="fedavg-rp"), []
    for event in first.training.run(first.federation):
        begun.append(encode_event(event))
        if isinstance(event, RoundFinished):
            break
    settings = experiment(*HOMOMORPHIC, "rounds=3", algorithm="fedavg-rp")
    again = prepare_run(settings, RunInputs(dataset=blobs()), snapshot=first.snapshot())
    assert begun + [encode_event(event) for event in events_of(again)] == log


@pytest.mark.parametrize(
    "algorithm", ["krum", "median", "trimmed-mean", "norm-bound", "qfedavg", "clustered-sampling", "fedbuff"]
)
def test_what_needs_every_update_is_refused_by_name(algorithm: str) -> None:
    with pytest.raises(ConfigError, match=r"collect.name = .homomorphic."):
        experiment(*HOMOMORPHIC, algorithm=algorithm)


def test_a_holder_that_is_no_client_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"^collect.key_holder = 8, but there are 8 clients"):
        prepared("collect={name='homomorphic', key_holder=8}", "select.count=5", algorithm="fedavg")


# What the server sees -------------------------------------------------------------------------------------------------


def test_the_server_is_sent_no_update_and_no_secret_key() -> None:
    ready = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedprof")
    watched = Meddling(ready.federation, lambda outcome: outcome)
    events_of(ready, watched)
    replies = [outcome for outcome in watched.seen if isinstance(outcome, Reply)]
    assert all("model" not in reply.payload for reply in replies if reply.task.name != "evaluate-reference")
    for reply in replies:
        if reply.task.name == MAKE_KEY:
            assert not ckks.read_context(reply.payload["secure"]["key"]).has_secret_key()
    encrypted = [reply for reply in replies if reply.task.name == ENCRYPT]
    assert len(encrypted) == 5
    for reply in encrypted:
        assert reply.payload.keys() == {CIPHERTEXTS}
        one = np.concatenate([array[200:] for array in reply.payload[CIPHERTEXTS].values()])
        assert np.bincount(one, minlength=256).min() > 0  # no stretch of plain numbers
    (opened,) = [reply for reply in replies if reply.task.name == DECRYPT]
    assert opened.payload["secure"].keys() == {"steps"}


# What goes wrong ------------------------------------------------------------------------------------------------------


def failing(name: str, clients: set[int]) -> Callable[[Outcome], Outcome]:
    def fail(outcome: Outcome) -> Outcome:
        if outcome.task.name == name and outcome.task.client in clients:
            return Failure(task=outcome.task, stage=name, reason="gone")
        return outcome

    return fail


def invited(ready: PreparedRun) -> list[int]:
    return rounds_of(events_of(ready))[0].aggregated.tolist()


def test_clients_may_drop_out_and_the_rest_is_summed() -> None:
    folded = invited(prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp"))
    gone = {*folded[:2]}
    ready = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp")
    (end,) = rounds_of(events_of(ready, Meddling(ready.federation, failing(ENCRYPT, gone))))
    assert end.aggregated.tolist() == folded[2:]


@pytest.mark.parametrize("step", [MAKE_KEY, DECRYPT])
def test_without_the_holder_the_round_is_abandoned_and_the_next_one_works(step: str) -> None:
    ready = prepared("rounds=2", *HOMOMORPHIC, algorithm="fedavg-rp")
    fail = failing(step, {1})
    federation = Meddling(ready.federation, lambda out: fail(out) if out.task.round == 1 else out)
    events = events_of(ready, federation)
    assert [len(event.aggregated) for event in rounds_of(events)] == [0, 5]
    assert any("who holds the key, did not answer" in reason for reason in reasons_of(events).values())


def test_too_few_survivors_open_nothing() -> None:
    folded = invited(prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp"))
    ready = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp")
    watched = Meddling(ready.federation, failing(ENCRYPT, {*folded[:3]}))
    events = events_of(ready, watched)
    assert "2 clients are too few for a sum, 3 are needed" in reasons_of(events)[folded[4]]
    assert not [outcome for outcome in watched.seen if outcome.task.name == DECRYPT]


def test_a_broken_vector_is_refused_and_the_others_are_summed() -> None:
    folded = invited(prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp"))

    def break_one(outcome: Outcome) -> Outcome:
        if outcome.task.name == ENCRYPT and outcome.task.client == folded[0] and isinstance(outcome, Reply):
            return replace(outcome, payload={CIPHERTEXTS: {"0": np.zeros(10, np.uint8)}})
        return outcome

    ready = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp")
    events = events_of(ready, Meddling(ready.federation, break_one))
    assert rounds_of(events)[0].aggregated.tolist() == folded[1:]
    assert reasons_of(events)[folded[0]].startswith("its ciphertexts cannot be used")


def test_clients_refuse_a_key_that_its_holder_did_not_sign() -> None:
    own = ckks.public_part(ckks.make_keys(), to_compute=False)

    def swap(outcome: Outcome) -> Outcome:
        if outcome.task.name == MAKE_KEY and isinstance(outcome, Reply):
            return replace(outcome, payload={"secure": {**outcome.payload["secure"], "key": own}})
        return outcome

    ready = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp")
    watched = Meddling(ready.federation, swap)
    events_of(ready, watched)
    answers = [outcome for outcome in watched.seen if outcome.task.name == ENCRYPT]
    assert len(answers) == 5
    assert all(isinstance(a, Failure) and a.reason.startswith("the key holder has not signed") for a in answers)


@pytest.mark.parametrize("step", [ENCRYPT, DECRYPT])
def test_an_update_leaves_once_and_a_key_opens_one_sum(step: str) -> None:
    ready = prepared("rounds=1", *HOMOMORPHIC, algorithm="fedavg-rp")
    watched = Meddling(ready.federation, lambda outcome: outcome)
    events_of(ready, watched)
    asked = [outcome.task for outcome in watched.seen if outcome.task.name == step]
    with ready.federation.dispatch(asked) as exchange:
        again = list(exchange)
    assert len(again) == len(asked) > 0
    assert all(isinstance(outcome, Failure) and "already" in outcome.reason for outcome in again)


@pytest.mark.parametrize(
    ("ciphertexts", "count", "reason"),
    [
        ({}, 10, "0 ciphertexts came for 10 numbers, and it takes 1"),
        ({"0": np.zeros(10, np.uint8)}, 10_000, "1 ciphertexts came for 10000 numbers, and it takes 5"),
        ({"1": np.zeros(10, np.uint8)}, 10, "not numbered from 0 without gaps"),
        (None, 10, "0 ciphertexts came for 10 numbers"),
    ],
)
def test_what_is_no_sum_is_refused_by_the_holder(ciphertexts: Any, count: int, reason: str) -> None:
    site = HomomorphicSite(HomomorphicAggregation(key_holder=0), simulated_identities())
    assert isinstance(asked(site, MAKE_KEY, count=count), Reply)
    outcome = asked(site, DECRYPT, {} if ciphertexts is None else {CIPHERTEXTS: ciphertexts})
    assert isinstance(outcome, Failure)
    assert reason in outcome.reason


def asked(site: HomomorphicSite, name: str, payload: Any = None, round: int = 1, **numbers: float) -> Outcome:
    """What the holder answers in a session of its own."""
    secure = {"session": np.frombuffer(os.urandom(16), np.uint8), **{n: np.array([v]) for n, v in numbers.items()}}
    task = Task(name=name, client=0, round=round, version=0, payload={"secure": secure, **(payload or {})})
    (outcome,) = site.extension().handlers[name]([task], None)
    return outcome


@pytest.mark.parametrize("count", [np.nan, 0, -3, 1e300])
def test_there_are_no_keys_for_absurd_sums(count: float) -> None:
    site = HomomorphicSite(HomomorphicAggregation(key_holder=0), simulated_identities())
    assert isinstance(asked(site, MAKE_KEY, count=count), Failure)


def test_a_round_has_one_key_and_the_key_one_size() -> None:
    """Asked again, the holder gives the same; once a sum was opened, or for sums of another size, none."""
    site = HomomorphicSite(HomomorphicAggregation(key_holder=0), simulated_identities())
    first, again = asked(site, MAKE_KEY, count=10), asked(site, MAKE_KEY, count=10)
    assert isinstance(first, Reply)
    assert isinstance(again, Reply)
    assert np.array_equal(first.payload["secure"]["key"], again.payload["secure"]["key"])
    asked(site, DECRYPT)
    for refused in (asked(site, MAKE_KEY, count=10), asked(site, MAKE_KEY, round=0, count=10)):
        assert isinstance(refused, Failure)
        assert refused.reason == "a key for this round or a later one already exists"
    assert isinstance(asked(site, MAKE_KEY, round=2, count=10), Reply)
    assert isinstance(asked(site, MAKE_KEY, round=2, count=100), Failure)


class Greedy:
    """A server that keeps to no protocol: it holds a conversation of its own with each client that has trained."""

    def __init__(self, ready: PreparedRun) -> None:
        self._federation = ready.federation
        tasks = ready.training.tasks(range(8), self._federation.population.sizes, round=1)
        self._ask(tasks)
        self._count = sum(tensor.numel() for tensor in ready.training.model.values()) + 1

    def opened(self, client: int, factor: int = 1) -> NDArray[np.int64] | None:
        """A client's update, if there is a way to have it opened by itself; by a key for so many updates at once."""
        session, count = np.frombuffer(os.urandom(16), np.uint8), np.array([factor * self._count])
        key = self._step(MAKE_KEY, 1, {"secure": {"session": session, "count": count}})
        if key is None:
            return None
        told = {"members": np.arange(8.0), "weights": np.ones(8), "session": session, **key["secure"]}
        encrypted = self._step(ENCRYPT, client, {"secure": told})
        if encrypted is None:
            return None
        steps = self._step(DECRYPT, 1, {**encrypted, "secure": {"session": session}})
        return None if steps is None else np.asarray(steps["secure"]["steps"])

    def _step(self, name: str, client: int, payload: Any) -> Any:
        (outcome,) = self._ask([Task(name=name, client=client, round=1, version=0, payload=payload)])
        return outcome.payload if isinstance(outcome, Reply) else None

    def _ask(self, tasks: Any) -> list[Outcome]:
        with self._federation.dispatch(tasks) as exchange:
            return list(exchange)


def test_a_server_that_asks_for_a_key_for_each_update_has_one_of_them_opened() -> None:
    greedy = Greedy(prepared("rounds=1", *HOMOMORPHIC, "select.count=8", algorithm="fedavg-rp"))
    opened = [client for client in range(8) if greedy.opened(client) is not None]
    assert opened == [0], "which is what a single sum is worth"


def test_a_server_that_asks_for_a_key_for_all_updates_at_once_has_none_encrypted() -> None:
    greedy = Greedy(prepared("rounds=1", *HOMOMORPHIC, "select.count=8", algorithm="fedavg-rp"))
    assert [client for client in range(8) if greedy.opened(client, factor=8) is not None] == []


def test_nobody_takes_part_where_one_client_has_nearly_all_the_weight() -> None:
    ready = prepared("rounds=1", *HOMOMORPHIC, "select.count=8", algorithm="fedavg-rp")

    def swap(task: Task) -> Task:
        if task.name != ENCRYPT:
            return task
        weights = np.where(task.payload["secure"]["members"] == 0, 1.0, 0.02)
        return replace(task, payload={"secure": {**task.payload["secure"], "weights": weights}})

    class Lying(Meddling):
        def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> Any:
            return super().dispatch([swap(task) for task in tasks], until)

    watched = Lying(ready.federation, lambda outcome: outcome)
    events_of(ready, watched)
    answers = [outcome for outcome in watched.seen if outcome.task.name == ENCRYPT]
    assert len(answers) == 8
    assert all("one client makes up 100% of the sum" in outcome.reason for outcome in answers)


@pytest.mark.parametrize("collect", [{"name": "homomorphic", "key_holder": 1}, {"name": "secure"}])
def test_a_run_that_is_resumed_from_its_folder_is_the_run_that_was_not_interrupted(
    collect: dict[str, Any], tmp_path: Path
) -> None:
    """A model that was read from a file has its tensors in another order than one that was built."""
    settings = {"algorithm": "fedavg", "collect": collect}
    winnow.run("demo", rounds=2, out=tmp_path / "whole", **settings)
    winnow.run("demo", rounds=1, out=tmp_path / "parts", **settings)
    winnow.run("demo", rounds=2, out=tmp_path / "parts", resume=True, **settings)
    logs = [(tmp_path / name / "events.jsonl").read_bytes() for name in ("whole", "parts")]
    assert logs[0] == logs[1]
    assert b"refused" not in logs[0]
