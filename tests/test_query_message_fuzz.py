"""Messages of secure steps that somebody changed on their way: a result or one line, never a traceback."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from query_tables import divided, pooled_rows, terms_of
from shares import parties_of, secure_step
from winnow.analytics.question import read_question
from winnow.analytics.sealed_answer import with_reader
from winnow.analytics.simulate import SimulatedOwners
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import Failure, Outcome, Reply, Task, WinnowError
from winnow.privacy.mixing.mix_party import MixParty, MixStep
from winnow.privacy.mixing.sealed_rows import box_bytes, sealed_rows
from winnow.privacy.secagg.key_agreement import KeyPair
from winnow.privacy.set_intersection.match_party import MatchParty, MatchStep
from winnow.privacy.set_intersection.union_party import UnionParty, UnionStep
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.product_party import ProductParty
from winnow.privacy.shares.product_step import ProductStep

READER = KeyPair()
OWNERS = (0, 1, 2)
LISTS = {0: ["ann", "bob"], 1: ["bob", "cy"], 2: ["bob", "dee", "ann"]}
ODD_VALUES = (None, True, -1, 2**63, 1.5, "x", b"", b"\0" * 40, [], {}, [[]], [b"x", 1], {"a": 1})
MAX_EXCHANGES = 60
Parties = Mapping[int, Any]


def sum_parties() -> Parties:
    return parties_of(secure_step(3, 2), [[1, 2], [3, -4], [5, 6]])


def comparison_parties() -> Parties:
    return parties_of(secure_step(3, 1, bits=16, thresholds=[4]), [[1], [2], [3]])


def union_parties() -> Parties:
    step = UnionStep(digest=b"d" * 32, owners=OWNERS, helper=None, length=3, identifiers=7, minimum=2)
    return {owner: UnionParty(step, owner, LISTS[owner]) for owner in OWNERS}


def match_parties() -> Parties:
    step = MatchStep(digest=b"d" * 32, everybody=OWNERS, parties=OWNERS, reveal="intersection", share=True, minimum=1)
    return {owner: MatchParty(step, owner, LISTS[owner]) for owner in OWNERS}


def mix_parties() -> Parties:
    step = MixStep(digest=b"d" * 32, owners=OWNERS, helper=None, slots=1, width=box_bytes(8))
    return {owner: MixParty(step, owner, sealed_rows([b"row %d" % owner], 1, 8, READER.public)) for owner in OWNERS}


def product_parties(*, compared: bool = False) -> Parties:
    """Two owners who multiply matrices of two rows, and a third party."""
    step = ProductStep(
        digest=b"d" * 32,
        parties=OWNERS,
        rows=2,
        columns=(1, 2),
        bits=16 if compared else 62,
        thresholds=np.array([3, 4], np.int64) if compared else None,
    )
    matrices = {0: np.array([[1], [2]]), 1: np.array([[3, 0], [1, 1]]), 2: None}
    return {owner: ProductParty(step, owner, matrices[owner]) for owner in OWNERS}


STEPS: dict[str, tuple[Callable[[], Parties], int, float]] = {
    "sum": (sum_parties, 2, 0.55),
    "product": (product_parties, 2, 0.09),
    "compared product": (partial(product_parties, compared=True), 20, 0.01),
    "comparison": (comparison_parties, 10, 0.06),
    "union": (union_parties, 6, 0.03),
    "match": (match_parties, 4, 0.01),
    "mix": (mix_parties, 4, 0.25),
}
"""Parties, about how many exchanges they need, and the part of all fuzzed messages that is theirs."""


def changed(message: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """Bytes written over, cut, added or doubled; another message; a field of another value or type."""
    how = rng.integers(0, 6)
    if how == 0 and len(message):
        garbled = bytearray(message)
        for place in rng.integers(0, len(garbled), rng.integers(1, 6)):
            garbled[place] = int(rng.integers(0, 256))
        return bytes(garbled)
    if how == 1:
        return message[: int(rng.integers(0, len(message) + 1))]
    if how == 2:
        return message + rng.bytes(int(rng.integers(1, 40)))
    if how == 3 and others:
        return others[int(rng.integers(0, len(others)))]
    fields = msgspec.msgpack.decode(message)
    if how == 4 and isinstance(fields, list) and fields:
        fields[int(rng.integers(0, len(fields)))] = ODD_VALUES[int(rng.integers(0, len(ODD_VALUES)))]
        return msgspec.msgpack.encode(fields)
    return msgspec.msgpack.encode(ODD_VALUES[int(rng.integers(0, len(ODD_VALUES)))])


def fuzz_step(parties: Parties, at: int, rng: np.random.Generator) -> int:
    """Every message from exchange `at` on may be changed. How many were, before somebody refused one or all ended."""
    letters = {me: party.first_messages() for me, party in parties.items()}
    seen, changes = list[bytes](), 0
    try:
        for exchange in range(MAX_EXCHANGES):
            waiting: dict[int, dict[int, bytes]] = {}
            for sender, written in letters.items():
                for to, message in written.items():
                    carried = message
                    if exchange >= at and rng.random() < 0.5:
                        carried, changes = changed(message, seen, rng), changes + 1
                    waiting.setdefault(to, {})[sender] = carried
                    seen.append(message)
            if not waiting:
                return changes
            letters = {to: parties[to].receive(messages) for to, messages in waiting.items()}
    except SharesError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is fine
        return changes
    raise AssertionError("parties went on for ever")


def fuzz_messages(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for make, exchanges, part in STEPS.values():
        changes = 0
        while changes < count * part:
            changes += fuzz_step(make(), int(rng.integers(0, exchanges)), rng)


@pytest.mark.parametrize("name", STEPS)
def test_messages_that_nobody_changed_give_a_result(name: str) -> None:
    make, exchanges, _ = STEPS[name]
    parties = make()
    assert fuzz_step(parties, MAX_EXCHANGES, np.random.default_rng(0)) == 0
    assert all(party.opened is not None for party in parties.values())
    if name == "union":
        assert [party.opened.tolist() for party in parties.values()] == [[1, 4]] * 3
    assert exchanges <= MAX_EXCHANGES


def test_a_thousand_changed_messages_give_a_result_or_one_line() -> None:
    fuzz_messages(1000, seed=1)


@pytest.mark.slow(part="attacks")
@pytest.mark.parametrize("part", range(10))
def test_a_hundred_thousand_changed_messages_give_a_result_or_one_line(part: int) -> None:
    fuzz_messages(10_000, seed=100 + part)


# Liars who count identifiers ------------------------------------------------------------------------------------------


def union_with(change: Callable[[int, int, int, bytes], bytes]) -> None:
    parties = union_parties()
    letters = {me: party.first_messages() for me, party in parties.items()}
    for exchange in range(MAX_EXCHANGES):
        waiting: dict[int, dict[int, bytes]] = {}
        for sender, written in letters.items():
            for to, message in written.items():
                waiting.setdefault(to, {})[sender] = change(exchange, sender, to, message)
        if not waiting:
            return
        letters = {to: parties[to].receive(messages) for to, messages in waiting.items()}


def points_of(message: bytes, points: Callable[[bytes], bytes]) -> bytes:
    digest, kind, body = msgspec.msgpack.decode(message)
    return msgspec.msgpack.encode((digest, kind, points(body)))


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (lambda body: body[:-32], "its list has 2 points, not 3"),
        (lambda body: body + body[:32], "its list has 4 points, not 3"),
        (lambda body: body[:-1], "a list of encrypted identifiers is cut off"),
        (lambda body: body[:-32] + b"\xff" * 32, "elements that are not valid encrypted identifiers"),
        (lambda body: body[:32] * 3, "its list has a point twice"),
    ],
)
def test_a_liar_who_counts_identifiers_ends_it_with_one_line(lie: Callable[[bytes], bytes], line: str) -> None:
    def change(exchange: int, sender: int, to: int, message: bytes) -> bytes:
        return points_of(message, lie) if exchange == 0 else message

    with pytest.raises(SharesError) as refused:
        union_with(change)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_owner_with_more_identifiers_than_all_said_is_refused() -> None:
    step = UnionStep(digest=b"d" * 32, owners=OWNERS, helper=None, length=1, identifiers=3, minimum=1)
    with pytest.raises(SharesError, match="more identifiers than all said"):
        UnionParty(step, 0, ["a", "b"])


# Tasks of a lying server, replies of a lying owner --------------------------------------------------------------------

SQL = "SELECT outcome, COUNT(*) AS n, COUNT(DISTINCT patient) AS p FROM stays GROUP BY outcome"
ODD_SETTINGS = (None, "", "x", -1, 10**30, [], {}, "[]", '[[0,"owner 0",""]]', "[" * 500, 1.5, True)


class Lying(SimulatedOwners):
    """What passes between server and owners is changed, from some task on, with some chance."""

    rng: np.random.Generator
    begin: int
    tasks = changes = 0

    def handle(self, tasks: Any, site: object) -> list[Outcome]:
        found = []
        for task in tasks:
            self.tasks += 1
            lies = self.tasks >= self.begin and self.rng.random() < 0.3
            self.changes += lies
            [outcome] = super().handle([self._task(task) if lies and self.rng.random() < 0.5 else task], site)
            found.append(self._outcome(outcome, task) if lies else outcome)
        return found

    def _odd(self) -> Any:
        return ODD_SETTINGS[int(self.rng.integers(0, len(ODD_SETTINGS)))]

    def _task(self, task: Task) -> Task:
        settings = dict(task.settings or {})
        how = self.rng.integers(0, 4)
        if how == 0 and settings:
            settings[str(self.rng.choice(list(settings)))] = self._odd()
        elif how == 1:
            settings = {"attempt": self._odd(), "exchange": self._odd(), "statements": self._odd()}
        elif how == 2:
            return replace(task, round=int(self.rng.integers(-3, 9)))
        else:
            letters = {each: changed(data, [], self.rng) for each, data in task.peer_messages.items()}
            return replace(task, peer_messages=letters)
        return replace(task, settings=settings)

    def _outcome(self, outcome: Outcome, task: Task) -> Outcome:
        if isinstance(outcome, Failure):
            assert "\n" not in outcome.reason
            return outcome
        if self.rng.random() < 0.5:
            return self._as_reply(outcome, task)
        garbage = {
            part: {name: np.frombuffer(self.rng.bytes(int(self.rng.integers(0, 50))), np.uint8) for name in named}
            for part, named in outcome.payload.items()
        }
        letters = {each: changed(data, [], self.rng) for each, data in outcome.peer_messages.items()}
        return Reply(task=task, payload=garbage, peer_messages=letters, new_client_state=outcome.new_client_state)

    @staticmethod
    def _as_reply(outcome: Reply, task: Task) -> Reply:
        return Reply(
            task=task,
            payload=outcome.payload,
            peer_messages=outcome.peer_messages,
            new_client_state=outcome.new_client_state,
        )


def fuzz_owners(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = dict(zip(terms_of(3), divided(pooled_rows(60, seed=1), 3, seed=1), strict=True))
    changes = 0
    while changes < count:
        question, _ = with_reader(read_question({"kind": "query", "sql": SQL}))
        owners = Lying(question, tables, terms_of(3, minimum=3))
        owners.rng, owners.begin = rng, int(rng.integers(1, 150))
        try:
            list(AnalysisWorkflow(question, owners.names).run(owners.federation()))
        except WinnowError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either is fine
        changes += owners.changes


def test_what_passes_between_server_and_owners_may_be_anything() -> None:
    fuzz_owners(15, seed=3)


@pytest.mark.slow(part="attacks")
def test_what_passes_between_server_and_owners_may_be_anything_three_thousand_times() -> None:
    fuzz_owners(3000, seed=4)
