"""Secure aggregation as a `collect`: the same learning, and a server that sees sums only."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from scipy.stats import chisquare

from winnow.cli.options import builtin_algorithms
from winnow.config.resolve import resolve
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
from winnow.learn.algorithm import Recipe
from winnow.privacy.secagg.interrupted_session import SessionRecord
from winnow.privacy.secagg.mask_keeper_messages import RemoteKeeper, answer_keeper_request
from winnow.privacy.secagg.protocol_tasks import (
    ADVERTISE_KEYS,
    CLOSE_SESSION,
    CONSISTENCY_CHECK,
    DEPOSIT_SEED,
    MASKED_INPUT,
    SHARE_KEYS,
    UNMASK,
    StepSettings,
    payload_bytes,
)
from winnow.privacy.secagg.secure_collect import SecureAggregation
from winnow.privacy.secagg.session_terms import KeyAdvertisement, read_message, write_message
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.privacy.secagg.third_party_mask_keeper import MaskKeeper
from winnow.runs import summarise
from winnow.runs.event_log import encode_event
from world import blobs, experiment, prepared

SECURE = ("collect.name=secure", "select.count=5")
FINE = (*SECURE, "collect.encoding.bits=24")
RING = ("collect.graph=ring", "collect.neighbours=2")
KEEPER = ("collect.keeper=true",)
ON_UPDATES = {
    *("krum", "multi-krum", "median", "trimmed-mean", "norm-bound", "qfedavg", "fedbuff", "safa", "cyclic"),
    *("clustered-sampling", "divfl", "fedpaq", "fedaq", "fedcomgate", "rscfed", "orchestra", "ds-fl", "fedmatch"),
}


def events_of(ready: PreparedRun) -> list[Any]:
    return list(ready.training.run(ready.federation))


def rounds_of(events: Iterable[Any]) -> list[RoundFinished]:
    return [event for event in events if isinstance(event, RoundFinished)]


def reasons_of(events: Iterable[Any]) -> dict[int, str]:
    """The last reason for each client that was refused."""
    return {event.client: event.reason for event in events if isinstance(event, Rejected)}


def same_model(one: PreparedRun, other: PreparedRun, within: float = 0.0) -> bool:
    models = one.training.model, other.training.model
    return all((models[0][name].double() - models[1][name].double()).abs().max() <= within for name in models[0])


# Learning -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "way"),
    [
        *((algorithm, ()) for algorithm in ("fedavg", "fedprof", "fedadam", "scaffold", "fednova", "fedrep")),
        *((algorithm, way) for algorithm in ("fedavg", "scaffold") for way in (RING, KEEPER)),
    ],
)
def test_an_algorithm_on_sums_learns_what_it_learns_in_the_clear(algorithm: str, way: tuple[str, ...]) -> None:
    plain = prepared("rounds=3", "select.count=5", algorithm=algorithm)
    private = prepared("rounds=3", *FINE, *way, algorithm=algorithm)
    in_the_clear, in_secret = events_of(plain), events_of(private)
    assert same_model(plain, private, within=5e-4)
    folded = [[event.aggregated.tolist() for event in rounds_of(events)] for events in (in_the_clear, in_secret)]
    assert folded[0] == folded[1]
    assert reasons_of(in_secret) == {}


@pytest.mark.parametrize("algorithm", sorted(Recipe.known))
def test_every_algorithm_either_works_or_is_refused_by_name(algorithm: str) -> None:
    doubling = Recipe.known[algorithm].table()["select"]["name"] == "doubling"
    sets = (*SECURE, "rounds=2", "collect.min_clients=2", *(("select.first_stage_clients=3",) if doubling else ()))
    if algorithm in ON_UPDATES:
        with pytest.raises(ConfigError, match=r"collect|cannot be summed"):
            prepared(*sets, algorithm=algorithm)
        return
    rounds = rounds_of(events_of(prepared(*sets, algorithm=algorithm)))
    assert all(len(event.aggregated) >= 2 for event in rounds)


@pytest.mark.parametrize("bits", [4, 8])
def test_few_bits_still_learn(bits: int) -> None:
    ready = prepared("rounds=12", *SECURE, f"collect.encoding.bits={bits}", algorithm="fedavg-rp")
    assert max(event.metrics["test"]["accuracy"] for event in rounds_of(events_of(ready))) > 0.75


@pytest.mark.parametrize(("algorithm", "way"), [("fedavg-rp", KEEPER), ("scaffold", ())])
def test_a_seed_repeats_and_resuming_equals_no_interruption(algorithm: str, way: tuple[str, ...]) -> None:
    """Keys and masks are new every time; what comes out is not."""
    whole = prepared(*SECURE, *way, algorithm=algorithm)
    log = [encode_event(event) for event in events_of(whole)]
    first, begun = prepared(*SECURE, *way, algorithm=algorithm), []
    for event in first.training.run(first.federation):
        begun.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == 2:
            break
    again = prepare_run(
        experiment(*SECURE, *way, algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=first.snapshot()
    )
    assert begun + [encode_event(event) for event in events_of(again)] == log
    assert same_model(whole, again)


def test_a_filter_at_the_sites_comes_before_the_masks() -> None:
    filters = [{"name": "percentile"}]
    plain = prepared("select.count=5", algorithm="fedavg-rp", filters=filters)
    private = prepared(*FINE, algorithm="fedavg-rp", filters=filters)
    unfiltered = prepared(*FINE, algorithm="fedavg-rp")
    for ready in (plain, private, unfiltered):
        events_of(ready)
    assert same_model(plain, private, within=5e-4)
    assert not same_model(unfiltered, private, within=5e-3)


def test_a_client_that_is_drawn_twice_counts_twice() -> None:
    sets = ("select.count=6", "select.replacement=true", "rounds=3")
    plain = prepared(*sets, algorithm="fedavg-rp")
    private = prepared(*sets, *FINE[:1], *FINE[2:], "collect.min_clients=2", algorithm="fedavg-rp")
    events_of(plain), events_of(private)
    assert same_model(plain, private, within=5e-4)


def test_the_uplink_and_what_was_cut_off_are_counted() -> None:
    coarse, fine = (prepared(*SECURE, f"collect.encoding.bits={bits}", algorithm="fedavg-rp") for bits in (4, 24))
    one, other = (rounds_of(events_of(ready)) for ready in (coarse, fine))
    assert sum(event.cost.transfer_seconds for event in one) < sum(event.cost.transfer_seconds for event in other)
    assert all(set(event.metrics["collect"]) == {"clipped", "overflowed"} for event in one)
    assert all(event.metrics["collect"]["overflowed"] == 0 for event in one)


# What cannot work -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (("aggregate.name=krum",), "aggregate.name = 'krum' needs every update"),
        (("aggregate.name=median",), "aggregate.name = 'median' needs every update"),
        (("select.name=clustered",), "select.name = 'clustered' compares updates"),
        (("schedule.name=buffered", "schedule.buffer_size=3"), "requires schedule.name = 'rounds'; it is 'buffered'"),
        (("collect.keeper=true", "collect.graph=ring"), "with a keeper, clients share no masks"),
        (("collect.neighbours=4",), 'neighbours needs graph = "ring"'),
        (("collect.graph=ring", "collect.neighbours=3"), "collect.neighbours"),
        (("collect.threshold=0.4",), "collect.threshold"),
        (("collect.encoding.bits=1",), "collect.encoding.bits"),
        (("collect.min_clients=6",), "collect.min_clients = 6, but a round has 5 clients"),
    ],
)
def test_what_cannot_work_is_refused_when_the_configuration_is_read(sets: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        prepared(*SECURE, *sets, algorithm="fedavg-rp")


SUGGESTIONS = {
    r"(set|requires|write) collect\.name (to|=) ['\"]plain['\"]": "collect.name=plain",
    r"set aggregate\.name to 'partial' or 'full'": "aggregate.name=partial aggregate.name=full",
    r"choose another algorithm": "algorithm=fedavg",
    r"choose another select\.name": "select.name=uniform",
    r"requires schedule\.name = 'rounds'": "schedule.name=rounds",
    r"leave the filter out": "filters=[]",
}
"""What a message may suggest, and what a user then sets instead."""


@pytest.mark.parametrize("algorithm", sorted(builtin_algorithms()))
def test_what_a_refusal_suggests_works(algorithm: str) -> None:
    labels = ('data.labels={at="server",rows=100}',) if algorithm in {"semifl", "server-only"} else ()
    sets = (*labels, "collect.name=secure")
    try:
        resolve("emnist-digits", algorithm=algorithm, sets=sets)
    except ConfigError as error:
        refusal = str(error)
    else:
        return
    assert "\n" not in refusal
    suggested = [changes for words, changes in SUGGESTIONS.items() if re.search(words, refusal)]
    assert suggested, refusal
    for change in " ".join(suggested).split():
        resolve("emnist-digits", algorithm=algorithm, sets=(*sets, change))
    if algorithm in {"rscfed", "orchestra"}:
        assert "set aggregate.name" not in refusal, "its clients would have no use for what they do"


# Bad days -------------------------------------------------------------------------------------------------------------

Meddle = Callable[[Reply], Outcome]


@dataclass
class Meddling:
    """A federation in which some replies to some steps are lost or changed on the way; it records what is delivered."""

    inner: Federation
    meddle: Mapping[tuple[str, int], Meddle] = field(default_factory=dict)
    seen: list[Outcome] = field(default_factory=list)
    sent: list[Task] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "_MeddledExchange":
        made = list(tasks)
        self.sent += made
        return _MeddledExchange(self, self.inner.dispatch(made, until))


@dataclass
class _MeddledExchange:
    federation: Meddling
    inner: Any

    def __enter__(self) -> "_MeddledExchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.close()

    def __iter__(self) -> Iterator[Outcome]:
        for outcome in self.inner:
            meddle = self.federation.meddle.get((outcome.task.name, outcome.task.client))
            changed = meddle(outcome) if meddle is not None and isinstance(outcome, Reply) else outcome
            self.federation.seen.append(changed)
            yield changed


def lost(reply: Reply) -> Failure:
    return Failure(task=reply.task, stage="answering", reason="the line went dead")


def saying(**data: bytes) -> Meddle:
    """The reply says this instead."""
    return lambda reply: replace(
        reply,
        payload={"secure": {**reply.payload["secure"], **{k: np.frombuffer(v, np.uint8) for k, v in data.items()}}},
    )


def announcing(reply: Reply, **keys: bytes) -> Outcome:
    """An advertisement with other keys, signed for all that."""
    before = read_message(payload_bytes(reply.payload, "advertisement"), KeyAdvertisement)
    return saying(advertisement=write_message(replace(before, **keys)))(reply)


def run_with(meddle: Mapping[tuple[str, int], Meddle], *sets: str) -> tuple[PreparedRun, Meddling, list[Any]]:
    """Everybody takes part; 8 clients of which 6 must stay."""
    ready = prepared("rounds=1", "collect.name=secure", "select.count=8", *sets, algorithm="fedavg-rp")
    federation = Meddling(ready.federation, meddle)
    return ready, federation, list(ready.training.run(federation))


@pytest.mark.parametrize("gone", [(3,), (0, 7)])
@pytest.mark.parametrize(
    ("step", "way"),
    [
        *((step, ()) for step in (ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASK)),
        (MASKED_INPUT, RING),
        (UNMASK, RING),
        (DEPOSIT_SEED, KEEPER),
    ],
)
def test_the_sum_is_that_of_those_whose_vectors_arrived(step: str, way: tuple[str, ...], gone: tuple[int, ...]) -> None:
    """Against a plain run in which the same clients never answer."""
    way = (*way[:1], "collect.neighbours=6") if way == RING else way
    ready, _, events = run_with({(step, client): lost for client in gone}, "collect.encoding.bits=24", *way)
    counts = () if step in (CONSISTENCY_CHECK, UNMASK) else gone
    plain = prepared("rounds=1", "select.count=8", algorithm="fedavg-rp")
    federation = Meddling(plain.federation, {("train", client): lost for client in counts})
    assert len(list(plain.training.run(federation))) > 0
    assert same_model(plain, ready, within=2e-4)
    (finished,) = rounds_of(events)
    assert finished.aggregated.tolist() == [client for client in range(8) if client not in counts]
    assert reasons_of(events) == dict.fromkeys(gone, "failed (answering): the line went dead")


@pytest.mark.parametrize(
    ("step", "way"),
    [*((step, ()) for step in (SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASK)), (DEPOSIT_SEED, KEEPER)],
)
def test_below_the_threshold_the_round_is_abandoned_and_the_model_stays(step: str, way: tuple[str, ...]) -> None:
    ready, federation, events = run_with({(step, client): lost for client in (1, 2, 3)}, *way)
    before = prepared("rounds=1", "select.count=8", algorithm="fedavg-rp")
    assert same_model(before, ready)
    assert rounds_of(events)[0].aggregated.tolist() == []
    reasons = reasons_of(events)
    assert sorted(event.client for event in events if isinstance(event, Rejected)) == list(range(8)), "each once"
    assert [client for client, reason in reasons.items() if "the line went dead" in reason] == [1, 2, 3]
    abandoned = summarise(events, metric="accuracy", target=None).abandoned
    assert abandoned is not None
    assert abandoned.rounds == 1
    [reason] = abandoned.reasons
    assert "takes 6" in reason or "6 are needed" in reason, "why the rest of them stopped"
    if step in (SHARE_KEYS, MASKED_INPUT):
        assert not any(isinstance(outcome, Reply) and outcome.task.name == UNMASK for outcome in federation.seen)


def test_the_next_round_goes_on_after_an_abandoned_one() -> None:
    ready = prepared("rounds=3", *SECURE, algorithm="fedavg-rp")
    federation = Meddling(ready.federation)
    federation.meddle = {
        (MASKED_INPUT, client): lambda reply: lost(reply) if reply.task.round == 2 else reply for client in range(8)
    }
    events = list(ready.training.run(federation))
    assert [len(event.aggregated) for event in rounds_of(events)] == [5, 0, 5]


@pytest.mark.parametrize(
    ("meddle", "reason"),
    [
        ({(MASKED_INPUT, 2): saying(words=b"short")}, "the vector has 5 bytes, not"),
        ({(MASKED_INPUT, 2): lambda reply: replace(reply, payload={})}, "the message has no valid inputs_digest"),
        ({(MASKED_INPUT, 2): saying(inputs_digest=b"something else")}, "it received different session inputs"),
        ({(ADVERTISE_KEYS, 2): saying(advertisement=b"\xc1")}, "a message that cannot be read"),
        (
            {(SHARE_KEYS, 2): lambda reply: replace(reply, peer_messages={1: b""})},
            "its messages are not addressed to its neighbours",
        ),
        ({(UNMASK, 2): saying(shares=b"\xc1")}, "a message that cannot be read"),
        ({(ADVERTISE_KEYS, 2): lambda reply: announcing(reply, sealing=bytes(32))}, "an invalid public key"),
        ({(ADVERTISE_KEYS, 2): lambda reply: announcing(reply, masking=bytes(32))}, "an invalid public key"),
        ({(ADVERTISE_KEYS, 2): lambda reply: announcing(reply, masking=b"short")}, "an invalid public key"),
    ],
)
def test_what_one_client_sends_wrong_is_refused_by_name_and_the_others_go_on(
    meddle: Mapping[tuple[str, int], Meddle], reason: str
) -> None:
    _, _, events = run_with(meddle)
    assert reason in reasons_of(events)[2]
    assert len(rounds_of(events)[0].aggregated) >= 7


@pytest.mark.parametrize("request_type", ["KeyRequest", "MaskSumRequest", "HistogramRequest"])
@pytest.mark.parametrize("said", [b"", b"123", b"1234" * 7])
def test_a_keeper_that_says_nonsense_has_the_round_abandoned(
    request_type: str, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nonsense(RemoteKeeper):
        def __init__(self, keeper: MaskKeeper) -> None:
            self._keeper = keeper

        def ask(self, question: bytes) -> bytes:
            right, asked = answer_keeper_request(self._keeper, question), msgspec.msgpack.decode(question)["type"]
            return said if asked == request_type else right

    keeper = Nonsense(MaskKeeper(simulated_identities(), threshold=2 / 3, min_clients=3, max_weight_share=0.75))
    monkeypatch.setattr(SecureAggregation, "keeper_for", lambda *_: keeper)
    product = "collect.encoding={name='product-quantisation', min_weights=4, codewords=4, block=2}"
    _, _, events = run_with({}, *KEEPER, product)
    reasons = reasons_of(events)
    assert len(reasons) == 8
    assert all(reason.startswith("the round was abandoned: ") for reason in reasons.values())


def test_one_with_another_ones_announcement_is_refused() -> None:
    taken: dict[int, Any] = {}

    def keep(reply: Reply) -> Reply:
        taken[reply.task.client] = reply.payload
        return reply

    _, _, events = run_with(
        {(ADVERTISE_KEYS, 1): keep, (ADVERTISE_KEYS, 2): lambda r: replace(r, payload=taken.get(1, r.payload))}
    )
    assert taken
    reason = "its key advertisement names another client"
    assert reasons_of(events).get(2, reason) == reason


def test_wrong_shares_of_one_are_worked_around_and_of_many_end_the_round() -> None:
    wrong = saying(shares=write_message({client: bytes(36) for client in range(8)}))
    ready, _, events = run_with({(UNMASK, 0): wrong}, "collect.encoding.bits=24")
    plain = prepared("rounds=1", "select.count=8", algorithm="fedavg-rp")
    events_of(plain)
    assert same_model(plain, ready, within=2e-4)
    _, _, events = run_with({(UNMASK, client): wrong for client in (0, 1, 2)})
    assert all("do not fit: one of its holders sent a wrong one" in reason for reason in reasons_of(events).values())


def test_what_is_not_finite_is_summed_as_no_change_and_nobody_is_told() -> None:
    ready = prepared("rounds=1", *SECURE, "local.learning_rate=1e30", algorithm="fedavg-rp")
    events = events_of(ready)
    assert reasons_of(events) == {}
    assert len(rounds_of(events)[0].aggregated) == 5
    assert all(bool(tensor.isfinite().all()) for tensor in ready.training.model.values())


def test_a_model_that_is_not_finite_is_refused_before_anybody_trains() -> None:
    """What leaves is the departure from it; the refusal depends on no data."""
    ready = prepared("rounds=1", *SECURE, algorithm="fedavg-rp")
    tasks = [
        replace(task, payload={"model": {name: tensor * np.nan for name, tensor in task.payload["model"].items()}})
        for task in ready.training.tasks([0, 1], ready.federation.population.sizes, round=1)
    ]
    with ready.federation.dispatch(tasks) as exchange:
        reasons = {outcome.reason for outcome in exchange}
    assert reasons == {"the model in the task has values that are not finite or are too large"}


def test_too_little_room_for_the_sum_abandons_the_round_by_name() -> None:
    sets = ("collect.encoding.margin=0", "collect.encoding.spread=0.5", "collect.encoding.bits=2")
    _, _, events = run_with({}, *sets)
    assert all("of the sums overflowed" in reason for reason in reasons_of(events).values())
    assert rounds_of(events)[0].aggregated.tolist() == []
    _, _, events = run_with({}, *sets, "collect.max_overflow_share=1.0")
    assert len(rounds_of(events)[0].aggregated) == 8
    assert rounds_of(events)[0].metrics["collect"]["overflowed"] > 0


# What the server sees -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "way"), [("fedprof", ()), ("scaffold", ()), ("fednova", ()), ("scaffold", KEEPER)]
)
def test_the_servers_whole_transcript_holds_no_update(algorithm: str, way: tuple[str, ...]) -> None:
    ready = prepared(*SECURE, *way, "model.hidden=[60]", algorithm=algorithm)
    federation = Meddling(ready.federation)
    list(ready.training.run(federation))
    replies = [outcome for outcome in federation.seen if isinstance(outcome, Reply)]
    assert {part for reply in replies for part in reply.payload} <= {"held", "profile", "secure"}
    assert all(not reply.new_client_state for reply in replies)
    vectors = [np.asarray(r.payload["secure"]["words"]) for r in replies if r.task.name in (MASKED_INPUT, DEPOSIT_SEED)]
    assert len(vectors) == 4 * 5
    for words in vectors:
        whole = words[: len(words) // 4 * 3]  # the last bytes fill segments up with zeros
        assert chisquare(np.bincount(whole, minlength=256)).pvalue > 1e-6


def test_the_transcript_test_can_fail() -> None:
    ready = prepared("select.count=5", algorithm="fedavg-rp")
    federation = Meddling(ready.federation)
    list(ready.training.run(federation))
    assert any("model" in outcome.payload for outcome in federation.seen if isinstance(outcome, Reply))


def ask(ready: PreparedRun, tasks: list[Task]) -> list[Outcome]:
    with ready.federation.dispatch(tasks) as exchange:
        return list(exchange)


def test_an_update_is_masked_once() -> None:
    """A server that opens a second session with the same updates, over other clients, is refused."""
    ready = prepared("rounds=1", *SECURE, algorithm="fedavg-rp")
    federation = Meddling(ready.federation)
    list(ready.training.run(federation))
    again = [
        replace(task, settings=StepSettings(session=b"again"))
        for task in federation.sent
        if task.name == ADVERTISE_KEYS
    ]
    assert all(
        "there is no update of this round" in o.reason or "was already sent" in o.reason for o in ask(ready, again)
    )
    trained = [task for task in federation.sent if task.name == "train"]
    assert all(isinstance(outcome, Reply) for outcome in ask(ready, trained))
    assert {outcome.reason for outcome in ask(ready, again)} == {
        "an update of this round or a later one was already sent"
    }


@pytest.mark.parametrize("named", ["this session", "another", "no valid session id"])
def test_a_client_that_speaks_of_an_interrupted_exchange_spoils_it_for_nobody_else(named: str) -> None:
    """It would have everybody close the session that has just begun, or answer a hundred times over."""

    def lies(reply: Reply) -> Outcome:
        settings = reply.task.settings
        assert isinstance(settings, StepSettings)
        session = {"this session": settings.session, "another": bytes(16), "no valid session id": b"x" * 1000}[named]
        return saying(interrupted=write_message(SessionRecord(session=session, members=[*range(8)] * 100, roster=b"")))(
            reply
        )

    _, federation, events = run_with({(ADVERTISE_KEYS, 3): lies})
    (finished,) = rounds_of(events)
    assert {*finished.aggregated.tolist()} >= {0, 1, 2, 4, 5, 6, 7}
    assert len([task for task in federation.sent if task.name == CLOSE_SESSION]) == (8 if named == "another" else 0)


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        (SECURE, (ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASK)),
        ((*SECURE, *KEEPER), (DEPOSIT_SEED,)),
    ],
)
def test_a_step_without_a_session_is_refused(way: tuple[str, ...], steps: tuple[str, ...]) -> None:
    ready = prepared("rounds=1", *way, algorithm="fedavg-rp")
    tasks = [Task(name=name, client=0, round=1, version=0, settings=StepSettings(session=b"none")) for name in steps]
    outcomes = [outcome for task in tasks for outcome in ask(ready, [task])]
    assert all(isinstance(outcome, Failure) for outcome in outcomes)


def told_with(change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Any]:
    """A run whose server tells client 3 something else than the others when it asks for masked vectors."""
    ready = prepared("rounds=1", "collect.name=secure", "select.count=8", algorithm="fedavg-rp")

    class Lying(Meddling):
        def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "_MeddledExchange":
            return super().dispatch(
                [
                    replace(task, payload=change(dict(task.payload)))
                    if (task.name, task.client) == (MASKED_INPUT, 3)
                    else task
                    for task in tasks
                ],
                until,
            )

    return list(ready.training.run(Lying(ready.federation)))


def test_a_client_that_is_told_other_scales_or_weights_does_not_stand_out() -> None:
    """Its vector is refused by an honest server; for a lying one its masks do not cancel."""

    def other_scales(payload: dict[str, Any]) -> dict[str, Any]:
        encoding = {**payload["encoding"], "scale": payload["encoding"]["scale"] / 1000}
        return {**payload, "encoding": encoding}

    assert "different session inputs" in reasons_of(told_with(other_scales))[3]

    def alone(payload: dict[str, Any]) -> dict[str, Any]:
        weights = np.where(payload["secure"]["members"] == 3, 1.0, 2.0**-24)
        return {**payload, "secure": {**payload["secure"], "weights": weights}}

    assert "one client makes up 100% of the sum" in reasons_of(told_with(alone))[3]


def test_profiles_and_losses_leave_outside_of_the_sums() -> None:
    ready = prepared(*SECURE, algorithm="fedprof")
    federation = Meddling(ready.federation)
    list(ready.training.run(federation))
    trained = [o for o in federation.seen if isinstance(o, Reply) and o.task.name == "train"]
    assert all({*reply.payload} == {"held", "profile"} for reply in trained)
    assert all(np.isfinite(reply.metrics["loss"]) for reply in trained)


def test_what_clients_keep_is_kept_once_their_vectors_are_in_the_sum() -> None:
    ready = prepared("rounds=1", "collect.name=secure", "select.count=8", algorithm="scaffold")
    federation = Meddling(ready.federation, {(MASKED_INPUT, 4): lost})
    list(ready.training.run(federation))
    kept = {client for client in range(8) if ready.simulation.store.read(client)}
    assert kept == {0, 1, 2, 3, 5, 6, 7}
    assert torch.isfinite(next(iter(ready.simulation.store.read(0)["control"].values()))).all()
