"""Messages of secure steps that somebody changed on their way, and whether each gives a result or one line.

`python tests/message_fuzz.py 100 103` tries parts of 10,000 messages, by their seeds, and ends with their number.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np

from fuzz_command import fuzz_command
from shares import parties_of, secure_step
from winnow.privacy.mixing.mix_party import MixParty, MixStep
from winnow.privacy.mixing.sealed_rows import box_bytes, sealed_rows
from winnow.privacy.secagg.key_agreement import KeyPair
from winnow.privacy.set_intersection.long_messages import LongMessages
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
PART = 10_000
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


def long_match_parties() -> Parties:
    """Lists that go in parts."""
    parties = match_parties()
    for each in parties.values():
        each._messages = LongMessages(200)
    return parties


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
    "match in parts": (long_match_parties, 30, 0.01),
    "mix": (mix_parties, 4, 0.24),
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
    try:
        fields = msgspec.msgpack.decode(message)
    except msgspec.DecodeError:  # somebody has changed it before
        fields = None
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


def fuzz_messages(count: int, seed: int) -> int:
    """At least so many changed messages; how many there were."""
    rng, changed_messages = np.random.default_rng(seed), 0
    for make, exchanges, part in STEPS.values():
        changes = 0
        while changes < count * part:
            changes += fuzz_step(make(), int(rng.integers(0, exchanges)), rng)
        changed_messages += changes
    return changed_messages


if __name__ == "__main__":
    fuzz_command(partial(fuzz_messages, PART), "message parts", "changed messages")
