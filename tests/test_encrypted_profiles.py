"""Profile matching under encryption: the right numbers, the same selections, and what the server never sees."""

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tenseal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.distributions import Normal, kl_divergence

from winnow.core import (
    UNTIL_ALL,
    ConfigError,
    Failure,
    Outcome,
    Rejected,
    Reply,
    RoundFinished,
    Scored,
    Selected,
    Task,
    Until,
)
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.profile_by_class import ClassProfile, class_divergence
from winnow.learn.representation_profile import Profile, divergence
from winnow.privacy import ckks
from winnow.privacy.encrypted_profile import MAX_MEAN_UNITS, compare_encrypted, read_profile, seal_profile, unit_of
from winnow.privacy.encrypted_profile_server import ENCRYPTED_PROFILE_BYTES, KEYS_BYTES, EncryptedReference
from winnow.privacy.encrypted_profile_site import EncryptedProfileSite, round_off_noise
from world import blobs, experiment, prepared

HOLDER = 2
WORLD = (f"reference_clients=[{HOLDER}]", "select.alpha=5")
ENCRYPTED = (*WORLD, "select.profile_comparison=encrypted")


# The numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Keys:
    """One holder's keys, apart as the parties have them."""

    secret: ckks.Context
    to_encrypt: ckks.Context
    to_compute: ckks.Context


@pytest.fixture(scope="module")
def keys() -> Keys:
    secret = ckks.make_keys()
    contexts = {
        name: ckks.public_part(secret, to_compute=name == "to_compute") for name in ("to_encrypt", "to_compute")
    }
    return Keys(secret=secret, **{name: ckks.read_context(data) for name, data in contexts.items()})


def profile(mean: Any, variance: Any) -> Profile:
    return Profile(mean=np.asarray(mean, np.float32), variance=np.asarray(variance, np.float32))


def test_profiles_by_class_are_compared_as_in_the_clear(keys: Keys) -> None:
    """One ciphertext holds the means of all classes; counts and variances are in the clear."""
    rng = np.random.default_rng(0)
    ours, theirs = np.array([30, 0, 7, 12]), np.array([50, 20, 0, 90])
    made = [
        ClassProfile(
            counts=counts,
            mean=rng.normal(0, 3, (4, 9)).astype(np.float32),
            variance=rng.uniform(0, 2, (4, 9)).astype(np.float32),
        )
        for counts in (ours, np.array([0, 0, 5, 0]), theirs)
    ]
    one, nothing_shared, reference = (seal_profile(each, keys.to_encrypt) for each in made)
    held = EncryptedReference(read_profile(reference, (4, 9), keys.to_compute), 0, keys.to_compute)

    def ask(tasks, check=None):
        (task,) = tasks
        values = np.array([ckks.decrypt(keys.secret, data) for data in task.payload["divergences"].values()])
        return [Reply(task=task, payload={"divergences": {"values": round_off_noise(values)}})]

    found = held.divergences([one, nothing_shared], ask)
    assert found[0] == pytest.approx(class_divergence([made[0]], made[2])[0], rel=1e-4)
    assert np.isnan(found[1])
    assert held.fault(one, 49) is None
    assert "more than the client's 48 samples" in (held.fault(one, 48) or "")
    assert "not encrypted as requested" in (held.fault({k: v for k, v in one.items() if k != "counts"}, 49) or "")


def encrypted_divergence(keys: Keys, one: Profile, reference: Profile) -> float:
    ours, theirs = (
        read_profile(seal_profile(each, keys.to_encrypt), (len(each),), keys.to_compute) for each in (one, reference)
    )
    compared = compare_encrypted(ours, theirs)
    value = round_off_noise(np.array([ckks.decrypt(keys.secret, compared.ciphertext)]))[0]
    return float(value / compared.factor)


gaussians = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(0.1, 3), st.floats(-5, 5), st.floats(0.1, 3)), min_size=1, max_size=40
)


@settings(max_examples=20, deadline=None)
@given(elements=gaussians, size=st.sampled_from([1e-4, 1.0, 1e5]))
def test_the_encrypted_divergence_is_the_mean_of_the_elements_divergences(
    keys: Keys, elements: list[tuple[float, float, float, float]], size: float
) -> None:
    mean, sd, mean0, sd0 = (size * np.array(elements)).T
    one, reference = profile(mean, sd**2), profile(mean0, sd0**2)
    p, p0 = (
        Normal(torch.tensor(each.mean).double(), torch.tensor(each.variance).double().sqrt())
        for each in (one, reference)
    )
    expected = float(kl_divergence(p, p0).mean())
    assert encrypted_divergence(keys, one, reference) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("elements", [1, 128, 4096])
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda p: p, id="itself"),
        pytest.param(lambda p: profile(p.mean + 0.1, 0 * p.variance), id="single sample"),
        pytest.param(lambda p: profile(p.mean * 1e4, p.variance * 1e8), id="far"),
        pytest.param(lambda p: profile(np.full(len(p), 1e18), 0 * p.variance), id="no number"),
    ],
)
def test_clients_of_every_kind_have_their_plain_divergence(keys: Keys, spoil: Any, elements: int) -> None:
    rng = np.random.default_rng(elements)
    reference = profile(rng.normal(0, 1, elements), rng.uniform(0.1, 2, elements))
    one = spoil(reference)
    (expected,) = divergence([one], reference)
    assert encrypted_divergence(keys, one, reference) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_dead_neuron_of_the_reference_costs_no_precision(keys: Keys) -> None:
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(0, 1, 20), rng.uniform(0.5, 2, 20)
    variance[:5] = 0
    one, reference = profile(mean + rng.normal(0, 1e-3, 20), variance), profile(mean, variance)
    (expected,) = divergence([one], reference)
    assert encrypted_divergence(keys, one, reference) == pytest.approx(expected, rel=1e-4)


def test_who_decrypts_a_divergence_finds_nothing_else_beside_it(keys: Keys) -> None:
    """All slots of the ciphertext hold the same number: no sum over fewer elements is left in any."""
    from tenseal import sealapi

    rng = np.random.default_rng(0)
    one, reference = (profile(rng.normal(0, 1, 12), rng.uniform(0.5, 2, 12)) for _ in range(2))
    ours, theirs = (
        read_profile(seal_profile(each, keys.to_encrypt), (12,), keys.to_compute) for each in (one, reference)
    )
    compared = compare_encrypted(ours, theirs)
    context, secret = keys.secret.seal_context().data, keys.secret.secret_key().data
    plain = sealapi.Plaintext()
    (ciphertext,) = tenseal.ckks_vector_from(keys.secret, compared.ciphertext.tobytes()).ciphertext()
    sealapi.Decryptor(context, secret).decrypt(ciphertext, plain)
    slots = np.array(sealapi.CKKSEncoder(context).decode_double(plain)) / compared.factor
    assert len(slots) == ckks.SLOTS
    (expected,) = divergence([one], reference)
    np.testing.assert_allclose(slots, expected, rtol=1e-5)


@given(st.lists(st.tuples(st.floats(-1e18, 1e18), st.floats(0, 1e30)), min_size=1, max_size=9))
def test_no_mean_is_out_of_reach_of_its_unit_which_follows_from_the_variances_if_it_can(elements: list) -> None:
    one = profile(*zip(*elements, strict=True))
    unit = unit_of(one)
    assert np.frexp(unit)[0] == 0.5
    assert np.abs(one.mean.astype(np.float64)).max() <= MAX_MEAN_UNITS * unit
    typical = np.sqrt(one.variance.astype(np.float64).mean())
    if typical > 0 and np.abs(one.mean).max() <= MAX_MEAN_UNITS * typical:
        assert unit == unit_of(profile(0 * one.mean, one.variance))


# A run, and all that the server sees of it ----------------------------------------------------------------------------


@dataclass
class Overheard:
    """A federation that takes down what passes between the server and the clients."""

    federation: Any
    sent: list[Task] = field(default_factory=list)
    received: list[Outcome] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.federation, name)

    def dispatch(self, tasks: Sequence[Task], until: Until = UNTIL_ALL) -> "OverheardExchange":
        self.sent += tasks
        return OverheardExchange(self.federation.dispatch(tasks, until), self.received)


@dataclass
class OverheardExchange:
    exchange: Any
    received: list[Outcome]

    def __iter__(self) -> Iterator[Outcome]:
        for outcome in self.exchange:
            self.received.append(outcome)
            yield outcome

    def __enter__(self) -> "OverheardExchange":
        return self

    def __exit__(self, *_: object) -> None:
        self.exchange.close()


@dataclass(frozen=True, kw_only=True)
class Run:
    ready: PreparedRun
    events: list
    overheard: Overheard
    means: list[NDArray[np.float32]]
    """Every mean that a site sealed: the clients' and the reference holder's."""


def overheard_run(*sets: str) -> Run:
    means: list[NDArray[np.float32]] = []

    def noted(one: Profile, context: ckks.Context) -> Any:
        means.append(one.mean)
        return seal_profile(one, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("winnow.privacy.encrypted_profile_site.seal_profile", noted)
        ready = prepared(*sets, algorithm="fedprof")
        overheard = Overheard(ready.federation)
        events = list(ready.training.run(overheard))
    return Run(ready=ready, events=events, overheard=overheard, means=means)


@pytest.fixture(scope="module")
def run() -> Run:
    return overheard_run(*ENCRYPTED)


@pytest.fixture(scope="module")
def plain() -> Run:
    return overheard_run(*WORLD)


def events_of(ready: PreparedRun) -> list:
    return list(ready.training.run(ready.federation))


def invited(events: list) -> list[list[int]]:
    return [event.clients.tolist() for event in events if isinstance(event, Selected)]


def assert_same_choices(encrypted: list, plain: list) -> None:
    assert invited(encrypted) == invited(plain)
    for ours, theirs in zip(*([e for e in log if isinstance(e, Scored)] for log in (encrypted, plain)), strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-4)


def test_selections_equal_the_plain_ones(run: Run, plain: Run) -> None:
    assert_same_choices(run.events, plain.events)
    assert not [event for event in run.events if isinstance(event, Rejected)]
    last, same = ([e for e in each.events if isinstance(e, RoundFinished)][-1].metrics for each in (run, plain))
    assert last == same


def arrays_in(payload: Any) -> list[NDArray[Any]]:
    return [np.asarray(array) for part in payload.values() for array in part.values()]


def traces(mean: NDArray[np.float32]) -> set[int]:
    """What 8 bytes anywhere would give a mean away: two elements in a row, or one in double precision, in any unit."""
    pairs = [mean[i : i + 2].tobytes() for i in range(len(mean) - 1)]
    scaled = [(float(value) * 2.0**power) for value in mean for power in range(-12, 13)]
    found = pairs + [np.float64(value).tobytes() for value in scaled]
    return {int.from_bytes(each, sys.byteorder) for each in found if each.count(0) < 7}


def found_in(replies: list[Outcome], wanted: set[int]) -> set[int]:
    """Which of these stand somewhere, at any offset, in what the replies carry."""
    data = b"".join(array.tobytes() for reply in replies for array in arrays_in(reply.payload))
    needles = np.array(sorted(wanted), np.uint64)
    found: set[int] = set()
    for offset in range(8):
        words = np.frombuffer(data, np.uint64, (len(data) - offset) // 8, offset=offset)
        nearest = needles[np.minimum(np.searchsorted(needles, words), len(needles) - 1)]
        found |= set(words[words == nearest].tolist())
    return found


def test_no_mean_can_be_found_in_what_the_server_was_sent(run: Run) -> None:
    keys, *others = run.overheard.received
    assert keys.task.name == "profile-make-keys"  # before there was any mean
    assert len(run.means) == 5 + 8 + 4 * 3  # the holder's for versions 0 to 4, first ones, those of the invited
    assert not found_in(others, set().union(*map(traces, run.means)))


def test_the_same_search_finds_means_that_are_sent_in_the_clear(run: Run, plain: Run) -> None:
    found = found_in(plain.overheard.received, set().union(*map(traces, run.means)))
    assert all(traces(mean) & found for mean in run.means)


def test_what_is_sent_besides_is_what_plain_clients_send_too(run: Run, plain: Run) -> None:
    def kinds(each: Run) -> set[tuple[str, ...]]:
        replies = [outcome for outcome in each.overheard.received if isinstance(outcome, Reply)]
        arrays = {(r.task.name, part, name) for r in replies for part, named in r.payload.items() for name in named}
        return arrays | {(r.task.name, metric) for r in replies for metric in r.metrics}

    asked = ("evaluate-reference", "profile", "train")
    assert kinds(plain) - kinds(run) == {(task, "profile", "mean") for task in asked}
    assert kinds(run) - kinds(plain) == {(task, "profile", name) for task in asked for name in ("sealed", "unit")} | {
        ("profile-make-keys", "keys", "encrypt"),
        ("profile-make-keys", "keys", "compute"),
        ("profile-decrypt", "divergences", "values"),
    }


def test_no_message_carries_the_secret_key(run: Run) -> None:
    messages = [*run.overheard.sent, *run.overheard.received]
    contexts = [array for message in messages for array in message.payload.get("keys", {}).values()]
    assert len(contexts) == 2 + 8  # what the holder sends, and what every client is sent
    for context in {array.tobytes() for array in contexts}:
        assert not tenseal.context_from(context).has_secret_key()


def test_the_server_holds_no_secret_key(run: Run) -> None:
    """Everything reachable from the workflow: keys to compute with, none to decrypt with."""
    found, seen, queue = [], set(), [run.ready.training]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type(gc) | type):
            continue
        seen.add(id(thing))
        if isinstance(thing, tenseal.Context):
            found.append(thing)
        is_code = hasattr(thing, "__globals__")  # whose globals lead to everything that was ever imported
        queue.extend([thing.__closure__, thing.__defaults__] if is_code else gc.get_referents(thing))
    assert found
    sealed = next(reply.payload["profile"]["sealed"] for reply in run.overheard.received if "profile" in reply.payload)
    for context in found:
        assert not context.has_secret_key()
        assert not context.is_private()
        with pytest.raises(ValueError, match="secret"):
            tenseal.ckks_vector_from(context, sealed.tobytes()).decrypt()


def test_what_is_charged_is_what_is_sent(run: Run) -> None:
    for reply in run.overheard.received:
        if "profile" in reply.payload:
            weight = sum(array.nbytes for array in reply.payload["profile"].values())
            assert reply.task.work.profile_bytes == pytest.approx(weight, rel=0.01)
        if reply.task.name == "profile-make-keys":
            assert reply.task.work.upload_bytes == pytest.approx(
                sum(a.nbytes for a in arrays_in(reply.payload)), rel=0.01
            )
        if reply.task.name in ("profile-decrypt", "profile-set-key"):
            assert reply.task.work.download_bytes == sum(array.nbytes for array in arrays_in(reply.task.payload))
            assert reply.cost.seconds > 0
    assert run.ready.plan.profile_bytes == ENCRYPTED_PROFILE_BYTES + 12 * 4
    assert KEYS_BYTES > ENCRYPTED_PROFILE_BYTES


# Other ways to run ----------------------------------------------------------------------------------------------------


def test_a_resumed_run_makes_new_keys_and_chooses_the_same() -> None:
    first = prepared(*ENCRYPTED, algorithm="fedprof")
    begun = []
    for event in first.training.run(first.federation):
        begun.append(event)
        if isinstance(event, RoundFinished) and event.round == 2:
            break
    snapshot = first.snapshot()
    assert not [name for name in snapshot.arrays if "sealed" in name or "key" in name or name.startswith("profile/")]
    second = prepare_run(experiment(*ENCRYPTED, algorithm="fedprof"), RunInputs(dataset=blobs()), snapshot=snapshot)
    overheard = Overheard(second.federation)
    rest = list(second.training.run(overheard))
    assert [task.name for task in overheard.sent].count("profile-make-keys") == 1
    assert_same_choices(begun + rest, events_of(prepared(*WORLD, algorithm="fedprof")))


def test_worker_processes_choose_the_same() -> None:
    with prepared(*ENCRYPTED, "engine.workers=2", "engine.chunk=2", "rounds=2", algorithm="fedprof-full") as ready:
        encrypted = events_of(ready)
    assert_same_choices(encrypted, events_of(prepared(*WORLD, "engine.chunk=2", "rounds=2", algorithm="fedprof-full")))


# What is refused ------------------------------------------------------------------------------------------------------


def changed(part: dict, **entries: Any) -> dict:
    return {**part, **entries}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda part: changed(part, sealed=part["sealed"][:-100]), "failed to parse"),
        (lambda part: changed(part, sealed=np.zeros(1000, np.uint8)), "cannot use the encrypted profile"),
        (lambda part: changed(part, sealed=np.zeros(0, np.uint8)), "not a single ciphertext"),
        (lambda part: changed(part, sealed=part["sealed"].astype(np.float32)), "not a byte array"),
        (lambda part: changed(part, variance=np.ones(3, np.float32)), "wrong length"),
        (lambda part: changed(part, variance=-part["variance"]), "not finite"),
        (lambda part: changed(part, unit=np.array([0.3])), "not a power of two"),
        (lambda part: changed(part, unit=np.array([2.0**200])), "not a power of two in range"),
        (lambda part: {"mean": np.zeros(12, np.float32), "variance": part["variance"]}, "not encrypted as requested"),
        (lambda part: {}, "not encrypted as requested"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_in_one_line(run: Run, spoil: Any, reason: str) -> None:
    """By the reference of the run's last version, to which the server would hold it."""
    reference = run.ready.training.expected.reference
    sound = next(dict(r.payload["profile"]) for r in run.overheard.received if r.task.name == "profile")
    assert reference.fault(sound, 100) is None
    fault = reference.fault(spoil(sound), 100)
    assert reason in fault
    assert "\n" not in fault


def test_a_refused_profile_is_recorded_and_its_client_comes_last() -> None:
    ready = prepared(*ENCRYPTED, "rounds=1", algorithm="fedprof")
    answer = ready.federation.handlers["profile"]
    other = ckks.make_keys()

    def corrupt(tasks: Sequence[Task], site: Any) -> list[Outcome]:
        cut, foreign, *others = answer(tasks, site)
        part = cut.payload["profile"]
        return [
            Reply(task=cut.task, payload={"profile": changed(part, sealed=part["sealed"][:1000])}),
            Reply(task=foreign.task, payload={"profile": seal_profile(profile(np.zeros(12), np.ones(12)), other)}),
            *others,
        ]

    ready.federation.handlers["profile"] = corrupt
    events = events_of(ready)
    (refused,) = [event for event in events if isinstance(event, Rejected)]
    assert (refused.client, "cannot use the encrypted profile" in refused.reason) == (0, True)
    (scored,) = [event for event in events if isinstance(event, Scored)]
    assert scored.scores[[0, 1]].max() <= scored.scores[2:].min()


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (("select.profile_comparison=encrypted",), "reference_clients: .*needs one client.*names none"),
        (
            ("select.profile_comparison=encrypted", "reference_clients=[1, 4]"),
            "reference_clients: .*needs one client.*names 2",
        ),
        (
            ("select.profile_comparison=encrypted", "reference_clients=[99]"),
            "reference_clients: client 99 does not exist",
        ),
        ((*ENCRYPTED, "model.hidden=[5000]"), "select.layer: .*5000 elements, and at most 4096"),
        ((*ENCRYPTED, "schedule.name=buffered", "schedule.buffer_size=2"), 'needs schedule.name = "rounds"'),
        (("select.profile_comparison=shrouded",), "encrypted"),
    ],
)
def test_what_cannot_work_is_refused_by_name_before_a_run(sets: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as refused:
        prepared(*sets, algorithm="fedprof")
    assert "\n" not in str(refused.value)


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[encryption\]"):
        prepared(*ENCRYPTED, algorithm="fedprof")


def task_for(client: int, name: str, **payload: Any) -> Task:
    return Task(name=name, client=client, round=0, version=0, payload=payload)


def test_only_the_holder_decrypts_and_only_single_numbers(keys: Keys) -> None:
    ring = EncryptedProfileSite()
    ring._secret[HOLDER] = keys.secret
    whole = ckks.encrypt(keys.to_encrypt, np.arange(12.0))
    for client, data, reason in ((1, whole, "no secret key"), (HOLDER, whole, "more than one number")):
        (outcome,) = ring.decrypt([task_for(client, "profile-decrypt", divergences={"0": data})], None)
        assert isinstance(outcome, Failure)
        assert reason in outcome.reason


def test_a_site_without_a_key_sends_no_profile_at_all() -> None:
    plain = {"profile": {"mean": np.ones(3, np.float32), "variance": np.ones(3, np.float32)}}
    task = task_for(0, "profile")
    (outcome,) = EncryptedProfileSite().seal([task], None, lambda tasks, site: [Reply(task=tasks[0], payload=plain)])
    assert isinstance(outcome, Failure)
    assert "no key" in outcome.reason


def test_a_secret_key_that_was_sent_is_not_taken(keys: Keys) -> None:
    leaked = np.frombuffer(keys.secret.serialize(save_secret_key=True, save_galois_keys=False), np.uint8)
    with pytest.raises(ckks.CiphertextError, match="secret key"):
        ckks.read_context(leaked)
    (outcome,) = EncryptedProfileSite().take_key([task_for(0, "profile-set-key", keys={"encrypt": leaked})], None)
    assert isinstance(outcome, Failure)


def test_ciphertexts_with_other_parameters_or_levels_are_refused(keys: Keys) -> None:
    context = keys.to_compute
    short = tenseal.ckks_vector(context, [1.0, 2.0])
    spent = tenseal.ckks_vector(context, [1.0] * ckks.SLOTS) * 2.0
    scaled = tenseal.ckks_vector(context, [1.0] * ckks.SLOTS, scale=2.0**30)
    two = tenseal.ckks_vector(context, [1.0] * (ckks.SLOTS + 1))
    for vector in (short, spent, scaled, two):
        with pytest.raises(ckks.CiphertextError):
            ckks.read_fresh(context, np.frombuffer(vector.serialize(), np.uint8))


def test_a_holder_that_does_not_answer_ends_nobodys_run() -> None:
    ready = prepared(*ENCRYPTED, "rounds=2", algorithm="fedprof")
    ready.federation.handlers["profile-make-keys"] = lambda tasks, site: [
        Failure(task=task, stage="making keys", reason="gone") for task in tasks
    ]
    events = events_of(ready)
    assert sum(isinstance(event, RoundFinished) for event in events) == 2
    reasons = [event.reason for event in events if isinstance(event, Rejected) and event.client == 2]
    assert reasons.count("failed (making keys): gone") == 3, "it is asked again before every version"
