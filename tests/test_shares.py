"""Sums and comparisons in shares: equal to plain ones, and nothing of the inputs in the messages."""

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shares import Messages, Post, exchange, parties_of, secure_step
from winnow.privacy.shares import secure_comparison
from winnow.privacy.shares.batched_step import step_party
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.field_elements import from_bytes, random_elements, to_bytes
from winnow.privacy.shares.party import StepParty
from winnow.privacy.shares.secure_comparison import BATCH
from winnow.privacy.shares.shamir_shares import field_of, make_shares, recombine
from winnow.privacy.shares.step_messages import InputMessage, MpycMessage, StepMessage

SMALL = 2**31 - 1
LARGE = 2**62 - 1


@st.composite
def inputs(draw: st.DrawFn, largest: int) -> list[list[int]]:
    owners, length = draw(st.integers(2, 9)), draw(st.integers(1, 5))
    numbers = st.one_of(st.integers(-20, 20), st.integers(-largest, largest))
    return draw(st.lists(st.lists(numbers, min_size=length, max_size=length), min_size=owners, max_size=owners))


@given(inputs(LARGE))
@settings(max_examples=25, deadline=None)
def test_a_sum_in_shares_is_the_plain_sum(values: list[list[int]]) -> None:
    step = secure_step(len(values), len(values[0]), bits=62)
    _, opened = exchange(parties_of(step, values))
    expected = [sum(column) for column in zip(*values, strict=True)]
    assert all(list(result) == expected for result in opened.values()), opened


@given(inputs(SMALL // 16), st.data())
@settings(max_examples=12, deadline=None)
def test_a_comparison_in_shares_is_the_plain_one(values: list[list[int]], data: st.DataObject) -> None:
    sums = [sum(column) for column in zip(*values, strict=True)]
    thresholds = [total + data.draw(st.sampled_from((-SMALL // 2, -1, 0, 1, SMALL // 2))) for total in sums]
    step = secure_step(len(values), len(sums), thresholds=thresholds)
    _, opened = exchange(parties_of(step, values))
    expected = [total >= threshold for total, threshold in zip(sums, thresholds, strict=True)]
    assert all(list(result) == expected for result in opened.values()), opened


def test_more_entries_than_fit_a_message_are_compared_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_comparison, "BATCH", 10)
    thresholds = list(range(490, 511))
    step = secure_step(3, 21, thresholds=thresholds)
    sent, opened = exchange(parties_of(step, [[100] * 21, [150] * 21, [250] * 21]))
    assert all(list(result) == [each <= 500 for each in thresholds] for result in opened.values())
    longest = max(len(message) for messages in sent[1:] for own in messages.values() for message in own.values())
    assert longest < 10 * 2**20 / BATCH, "a batch of the usual size stays below a megabyte"
    assert 20 < len(sent) <= step.max_exchanges


@pytest.mark.parametrize("owners", [2, 3, 9])
@pytest.mark.parametrize("compared", [False, True])
def test_long_steps_are_computed_in_batches(owners: int, compared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a party receives at a time is bounded, however many numbers and owners there are."""
    monkeypatch.setattr("winnow.privacy.shares.party.MAX_RECEIVED_BYTES", 50 * owners)
    thresholds = list(range(23)) if compared else None
    step = secure_step(owners, 23, thresholds=thresholds)
    assert step.length > 2 * step.batch_length > 2
    values = [[owner] * 23 for owner in range(owners)]
    parties = {owner: step_party(step, owner, np.array(own)) for owner, own in enumerate(values)}
    if step.third_party is not None:
        parties[step.third_party] = step_party(step, step.third_party, None)
    sent, opened = exchange(parties)
    total = sum(range(owners))
    expected = [total >= each for each in range(23)] if compared else [total] * 23
    assert all(list(result) == expected for result in opened.values())
    assert len(sent) <= step.max_exchanges
    received = [sum(len(own.get(0, b"")) for own in messages.values()) for messages in sent]
    assert compared or max(received) < 210 * owners, "shares, and what stands around them"


@pytest.mark.parametrize(("owners", "computing"), [(2, 3), (3, 3), (7, 7), (8, 5), (20, 5)])
def test_who_computes(owners: int, computing: int) -> None:
    step = secure_step(owners, 1)
    assert len(step.computing) == computing
    sent, opened = exchange(parties_of(step, [[owner] for owner in range(owners)]))
    assert {*opened} == {*step.everybody}
    assert all(result == [owners * (owners - 1) / 2] for result in opened.values())
    writers = {sender for messages in sent[1:] for sender, own in messages.items() if own}
    assert writers == {*step.computing}, "others write one message, with shares for those who compute"


def test_two_parties_alone_protect_nothing_and_are_refused() -> None:
    step = secure_step(2, 1)
    alone = type(step)(digest=b"", owners=(0, 1), length=1, bits=8)
    with pytest.raises(SharesError, match="a third party has to compute"):
        StepParty(alone, 0, np.array([1]))


# What messages say ----------------------------------------------------------------------------------------------------


def _shares_in(sent: list[Messages], kind: type[InputMessage | StepMessage]) -> bytes:
    """All shares in the messages; those that are written to several parties once."""
    found = set[bytes]()
    for messages in sent[:1] if kind is InputMessage else sent[1:-1]:
        for own in messages.values():
            for data in own.values():
                message = msgspec.msgpack.decode(data, type=kind)
                found |= (
                    {message.shares} if isinstance(message, InputMessage) else {m.data for m in message.mpyc_messages}
                )
    return b"".join(found)


@pytest.mark.parametrize("value", [0, LARGE])
@pytest.mark.parametrize("owners", [2, 3, 9])
def test_shares_look_the_same_whatever_the_input_is(value: int, owners: int) -> None:
    """χ² over the bytes of all shares: 255 degrees of freedom, mean 255, deviation 22.6; 400 is 6.4 deviations away."""
    step = secure_step(owners, 2_000, bits=62)
    sent, _ = exchange(parties_of(step, [[value] * 2_000] * owners))
    shares = np.frombuffer(_shares_in(sent, InputMessage), np.uint8)
    counts = np.bincount(shares, minlength=256)
    expected = len(shares) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400


@pytest.mark.parametrize("value", [0, SMALL // 4])
def test_what_is_said_while_comparing_looks_the_same_whatever_the_input_is(value: int) -> None:
    step = secure_step(3, 60, thresholds=[1] * 60)
    sent, _ = exchange(parties_of(step, [[value] * 60] * 3))
    messages = np.frombuffer(_shares_in(sent, StepMessage), np.uint8)
    counts = np.bincount(messages, minlength=256)
    expected = len(messages) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 400


@pytest.mark.parametrize("thresholds", [None, [3] * 7])
def test_the_length_of_messages_does_not_depend_on_values(thresholds: list[int] | None) -> None:
    lengths = []
    for value in (0, 1, SMALL // 8):
        step = secure_step(3, 7, thresholds=thresholds)
        sent, _ = exchange(parties_of(step, [[value] * 7] * 3))
        lengths.append([[sorted(map(len, own.values())) for own in messages.values()] for messages in sent])
    assert lengths[0] == lengths[1] == lengths[2]


def test_a_comparison_opens_nothing_but_bits() -> None:
    """The result that is sent is a bit in shares: sums that differ by far give the same."""
    for value in (10, SMALL // 8):
        step = secure_step(3, 4, thresholds=[10] * 4)
        sent, _ = exchange(parties_of(step, [[value] * 4] * 3))
        last = [
            msgspec.msgpack.decode(own[0 if sender else 1], type=StepMessage).result for sender, own in sent[-1].items()
        ]
        shares = {place: from_bytes(data, step.field.byte_length) for place, data in enumerate(last)}
        assert list(recombine(step.field, shares, 3)) == [1] * 4


def test_wrong_shares_of_a_result_show_up_to_the_threshold() -> None:
    field = field_of(64)
    shares = dict(enumerate(make_shares(field, np.array([-5, 7]), 5)))
    assert list(recombine(field, shares, 5)) == [-5, 7]
    for wrong in ((0,), (4,), (1, 3)):
        changed = {place: (share + 1) % field.modulus if place in wrong else share for place, share in shares.items()}
        with pytest.raises(SharesError, match="do not fit together"):
            recombine(field, changed, 5)


def test_elements_survive_their_bytes() -> None:
    for bits in (40, 64, 72, 80, 136):
        field = field_of(bits)
        drawn = random_elements(field.modulus, 50)
        assert np.array_equal(from_bytes(to_bytes(drawn, field.byte_length), field.byte_length), drawn)
        assert [int.from_bytes(to_bytes(drawn[:1], field.byte_length), "little")] == [drawn[0]]


# A liar --------------------------------------------------------------------------------------------------------------


def _tampering(change: Callable[[bytes], bytes], at: int, sender: int = 0, to: int = 1) -> Post:
    def post(number: int, messages: Messages) -> Messages:
        if number == at and to in messages[sender]:
            messages[sender][to] = change(messages[sender][to])
        return messages

    return post


def _changed(**fields: object) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        kind = (
            InputMessage
            if "shares" in fields or "keys" in fields or "step" in fields or "nonce" in fields
            else StepMessage
        )
        return msgspec.msgpack.encode(msgspec.structs.replace(msgspec.msgpack.decode(data, type=kind), **fields))

    return change


WRONG_LETTERS = {
    "garbage": (lambda data: b"\xff\x00garbage", 0, "cannot be read"),
    "garbage later": (lambda data: b"\xc1" * 50, 3, "cannot be read"),
    "nothing": (lambda data: b"", 2, "cannot be read"),
    "a pickle": (lambda data: pickle.dumps(os.getcwd), 1, "cannot be read"),
    "cut short": (lambda data: data[:-5], 0, "cannot be read"),
    "of another step": (_changed(step=b"another"), 0, "another step, other terms"),
    "of another attempt": (_changed(session=bytes(32)), 2, "another step or attempt"),
    "out of order": (_changed(number=7), 1, "out of order"),
    "too few shares": (_changed(shares=b"123"), 0, "bytes of shares where"),
    "shares outside of the field": (_changed(shares=b"\xff" * 20), 0, "not an element of the field"),
    "too few keys": (_changed(keys=[]), 0, "has not the keys"),
    "odd keys": (_changed(keys=[b"short"]), 0, "no valid nonce or keys"),
    "messages that nobody waits for": (_changed(mpyc_messages=[MpycMessage(5, b"1234567890")]), 2, None),
    "two messages for one place": (
        _changed(mpyc_messages=[MpycMessage(5, b"123")] * 2),
        2,
        "two messages for one place",
    ),
    "an early result": (_changed(result=b"123"), 2, "bytes of shares where"),
}


@pytest.mark.parametrize("name", WRONG_LETTERS)
def test_a_wrong_message_ends_the_step_with_one_line(name: str) -> None:
    change, at, line = WRONG_LETTERS[name]
    step = secure_step(3, 2, thresholds=[3, 4])
    parties = parties_of(step, [[1, 1]] * 3)
    if line is None:  # nothing arrives that a party waits for: nobody writes, and the step stands still
        _, opened = exchange(parties, _tampering(change, at))
        assert all(result is None for result in opened.values())
        return
    with pytest.raises(SharesError, match=line) as caught:
        exchange(parties, _tampering(change, at))
    assert "\n" not in str(caught.value)


def test_a_message_of_a_wrong_length_ends_the_comparison_with_one_line() -> None:
    def shorter(data: bytes) -> bytes:
        message = msgspec.msgpack.decode(data, type=StepMessage)
        messages = [MpycMessage(place, content[: len(content) // 2]) for place, content in message.mpyc_messages]
        return msgspec.msgpack.encode(msgspec.structs.replace(message, mpyc_messages=messages))

    for at in (1, 2, 4, 8):
        step = secure_step(3, 4, thresholds=[3] * 4)
        with pytest.raises(SharesError, match=r"do not fit the comparison|no whole number of entries"):
            exchange(parties_of(step, [[1] * 4] * 3), _tampering(shorter, at))


def test_a_message_that_is_delivered_twice_ends_the_step() -> None:
    before: dict[int, bytes] = {}

    def repeat(number: int, messages: Messages) -> Messages:
        if number == 3:
            messages[0][1] = before[2]
        before[number] = messages[0].get(1, b"")
        return messages

    with pytest.raises(SharesError, match="repeated or out of order") as caught:
        exchange(parties_of(secure_step(3, 2, thresholds=[3, 4]), [[1, 1]] * 3), repeat)
    assert caught.value.party == 0


def test_messages_of_an_earlier_attempt_do_not_fit_the_next_one() -> None:
    """Whoever carries messages may keep them, and deliver them when the same step begins again."""
    step = secure_step(3, 2)
    kept, _ = exchange(parties_of(step, [[1, 1]] * 3))

    def first_again(number: int, messages: Messages) -> Messages:
        if number == 0:
            messages[1][0] = kept[0][1][0]
        return messages

    with pytest.raises(SharesError, match="another step or attempt"):
        exchange(parties_of(step, [[1, 1]] * 3), first_again)


def test_a_message_of_somebody_else_is_refused() -> None:
    parties = parties_of(secure_step(3, 1), [[1]] * 3)
    messages = parties[1].first_messages()
    for party in parties.values():
        party.first_messages()
    with pytest.raises(SharesError, match="no part in this step"):
        parties[0].receive({5: messages[0]})
    with pytest.raises(SharesError, match="first message is missing") as caught:
        parties[0].receive({1: messages[0]})
    assert caught.value.party == 2


def test_a_wrong_share_of_the_result_is_noticed_by_those_who_get_it() -> None:
    """Three parties withstand one that lies when the result is opened."""

    def wrong(data: bytes) -> bytes:
        message = msgspec.msgpack.decode(data, type=StepMessage)
        return msgspec.msgpack.encode(msgspec.structs.replace(message, result=bytes(len(message.result))))

    with pytest.raises(SharesError, match="do not fit together"):
        exchange(parties_of(secure_step(3, 2), [[1, 1]] * 3), _tampering(wrong, 1))


@given(st.integers(0, 10), st.integers(0, 400), st.binary(min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_whatever_is_written_over_a_message_there_is_a_result_or_one_line(at: int, place: int, over: bytes) -> None:
    def change(data: bytes) -> bytes:
        start = place % len(data)
        return data[:start] + over + data[start + len(over) :]

    opened: dict[int, Any] = {}
    with suppress(SharesError):
        _, opened = exchange(parties_of(secure_step(3, 1, thresholds=[2]), [[1]] * 3), _tampering(change, at))
    assert all(result is None or result.dtype == bool for result in opened.values())


# MPyC as a guest -----------------------------------------------------------------------------------------------------


def test_importing_mpyc_leaves_the_process_as_it_was() -> None:
    program = (
        "import asyncio, logging, os, sys\n"
        "sys.argv = ['program', '-V', '-M3']\n"
        "from winnow.privacy.shares.mpyc_library import mpyc\n"
        "mpyc()\n"
        "assert sys.argv == ['program', '-V', '-M3'], sys.argv\n"
        "assert not logging.getLogger().handlers\n"
        "assert 'torch' not in sys.modules\n"
        "try:\n"
        "    asyncio.get_running_loop()\n"
        "except RuntimeError:\n"
        "    print('as it was')\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "as it was\n"), done.stderr


def test_parties_compute_where_an_event_loop_runs_already() -> None:
    """As in a notebook."""

    async def inside() -> list[bool]:
        _, opened = exchange(parties_of(secure_step(3, 2, thresholds=[3, 4]), [[1, 1]] * 3))
        assert asyncio.get_running_loop() is not None
        return list(opened[0])

    assert asyncio.run(inside()) == [True, False]


def test_parties_in_several_threads_do_not_get_into_each_others_way() -> None:
    def compare(total: int) -> list[bool]:
        step = secure_step(3, 8, thresholds=list(range(8)))
        _, opened = exchange(parties_of(step, [[total] * 8, [0] * 8, [0] * 8]))
        return list(opened[2])

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(compare, range(8)))
    assert found == [[total >= each for each in range(8)] for total in range(8)]
