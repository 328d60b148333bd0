"""Products of secret numbers: equal to plain ones, nothing of the factors in the messages, and liars found out."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shares import SERVER, Messages, exchange
from winnow.deploy.server.task_exchange import MAX_TASK_BYTES
from winnow.privacy.replicated_product import (
    ReplicatedShare,
    from_words,
    keystream,
    matrix_product_part,
    product_part,
    to_words,
    zero_part,
)
from winnow.privacy.shares import product_step
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.product_party import ProductParty
from winnow.privacy.shares.product_step import ProductChunk, ProductInput, ProductStep
from winnow.privacy.shares.step_messages import MESSAGE_BYTES, StepMessage

PARTIES = (4, 7, SERVER)
Matrix = NDArray[np.int64]


def product_of(
    left: Matrix,
    right: Matrix,
    *,
    thresholds: list[int] | None = None,
    bits: int = 62,
    entries: list[int] | None = None,
) -> dict[int, ProductParty]:
    step = ProductStep(
        digest=b"step",
        parties=PARTIES,
        rows=len(left),
        columns=(left.shape[1], right.shape[1]),
        bits=bits,
        thresholds=None if thresholds is None else np.array(thresholds, np.int64),
        entries=None if entries is None else np.array(entries, np.int64),
    )
    return {party: ProductParty(step, party, each) for party, each in zip(PARTIES, (left, right, None), strict=True)}


@st.composite
def matrices(draw: st.DrawFn, largest: int) -> tuple[Matrix, Matrix]:
    rows, left, right = draw(st.integers(0, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(-largest, largest, (rows, left)), rng.integers(-largest, largest, (rows, right))


def shares_of(values: Matrix, seed: int) -> list[ReplicatedShare]:
    """All three parts by chance, as a dealer would make them."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 2**64, (2, *values.shape), np.uint64)
    parts = [first, second, to_words(values) - first - second]
    return [ReplicatedShare(parts[place], parts[(place + 1) % 3]) for place in range(3)]


@given(matrices(2**28), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_parts_of_a_product_add_up_to_it(factors: tuple[Matrix, Matrix], seed: int) -> None:
    left, right = factors
    keys = [bytes([place]) * 32 for place in range(3)]
    shape = (left.shape[1], right.shape[1])
    ours, theirs = shares_of(left, seed), shares_of(right, seed + 1)
    parts = [matrix_product_part(ours[i], theirs[i]) + zero_part(keys[i], keys[(i + 1) % 3], shape) for i in range(3)]
    assert np.array_equal(from_words(parts[0] + parts[1] + parts[2]), left.T @ right)
    entries = [product_part(one, other) for one, other in zip(ours, shares_of(left + 1, 9), strict=True)]
    assert np.array_equal(from_words(entries[0] + entries[1] + entries[2]), left * (left + 1))


def test_a_stream_can_be_read_from_the_middle() -> None:
    whole = keystream(b"s" * 32, (20,))
    assert np.array_equal(keystream(b"s" * 32, (6,), first=8), whole[8:14])


@given(matrices(2**28))
@settings(max_examples=15, deadline=None)
def test_three_parties_open_the_plain_product(factors: tuple[Matrix, Matrix]) -> None:
    left, right = factors
    _, opened = exchange(product_of(left, right))
    assert all(list(each) == (left.T @ right).reshape(-1).tolist() for each in opened.values() if each is not None)
    assert len([each for each in opened.values() if each is not None]) == 3


@given(matrices(2), st.data())
@settings(max_examples=8, deadline=None)
def test_a_comparison_of_products_is_the_plain_one(factors: tuple[Matrix, Matrix], data: st.DataObject) -> None:
    left, right = np.abs(factors[0]), np.abs(factors[1])
    plain = (left.T @ right).reshape(-1)
    thresholds = [int(each) + data.draw(st.sampled_from((-1, 0, 1, 100))) for each in plain]
    _, opened = exchange(product_of(left, right, thresholds=thresholds, bits=24))
    assert all(list(each) == (plain >= thresholds).tolist() for each in opened.values() if each is not None)
    assert all(each is not None for each in opened.values())


@given(matrices(2), st.data())
@settings(max_examples=8, deadline=None)
def test_some_entries_become_known_and_no_part_of_the_others_is_sent(
    factors: tuple[Matrix, Matrix], data: st.DataObject
) -> None:
    left, right = np.abs(factors[0]), np.abs(factors[1])
    plain = (left.T @ right).reshape(-1)
    entries = data.draw(st.lists(st.integers(0, len(plain) - 1), min_size=1, max_size=5))
    sent, opened = exchange(product_of(left, right, entries=entries))
    assert all(list(each) == plain[entries].tolist() for each in opened.values() if each is not None)
    assert len(msgspec.msgpack.decode(sent[-1][4][7], type=ProductChunk).words) == 8 * len(entries)
    _, opened = exchange(product_of(left, right, thresholds=[1] * len(entries), bits=24, entries=entries))
    assert all(list(each) == (plain[entries] >= 1).tolist() for each in opened.values() if each is not None)


def test_a_party_that_sends_parts_of_hidden_entries_is_found_out() -> None:
    left = np.arange(6).reshape(3, 2)
    with pytest.raises(SharesError, match="32 bytes of words where 8 were expected") as caught:
        exchange(product_of(left, left, entries=[2]), altered(ProductChunk, 4, 7, 1, words=b"\0" * 32))
    assert caught.value.party == 4
    with pytest.raises(ValueError, match="has no such entry"):
        product_of(left, left, entries=[4])


def test_rows_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_step, "MESSAGE_BYTES", 4 * 8 * 3)
    rng = np.random.default_rng(0)
    left, right = rng.integers(-9, 9, (23, 3)), rng.integers(-9, 9, (23, 2))
    sent, opened = exchange(product_of(left, right))
    assert len(sent) == 6 + 1
    assert list(opened[7]) == (left.T @ right).reshape(-1).tolist()


def test_a_chunk_is_no_larger_than_a_task_that_sites_take() -> None:
    """Of a product that takes several, as it is carried to a site with the digest of a step and a sealed box around."""
    left = right = np.ones((3 * MESSAGE_BYTES // 64, 4), np.int64)
    sent, opened = exchange(product_of(left, right))
    largest = max(len(data) for step in sent for messages in step.values() for data in messages.values())
    assert MESSAGE_BYTES // 2 < largest < MAX_TASK_BYTES - 4096
    assert list(opened[7]) == [len(left)] * 16


def test_lengths_of_messages_do_not_depend_on_values() -> None:
    """The same for matrices of zeros and of the largest numbers, opened or compared."""

    def lengths(value: int, thresholds: list[int] | None) -> list[dict[int, dict[int, int]]]:
        left, right = np.full((9, 2), value), np.ones((9, 2), np.int64)
        sent, _ = exchange(product_of(left, right, thresholds=thresholds, bits=24))
        return [{me: {to: len(data) for to, data in each.items()} for me, each in step.items()} for step in sent]

    for thresholds in (None, [5, 5, 5, 5]):
        assert lengths(0, thresholds) == lengths(100_000, thresholds)


def test_no_party_sees_anything_but_chance() -> None:
    """What a party receives of a constant matrix looks uniform: top bits balanced, no word twice."""
    value = np.full((4000, 1), 3)
    sent, _ = exchange(product_of(value, value))
    for sender, receiver in ((4, 7), (7, SERVER)):
        words = np.frombuffer(msgspec.msgpack.decode(sent[0][sender][receiver], type=ProductInput).words, "<u8")
        assert len({*words.tolist()}) == 4000
        assert abs(float((words >> np.uint64(63)).mean()) - 0.5) < 0.05
    opening = [msgspec.msgpack.decode(each, type=ProductChunk).words for each in (sent[1][4][7], sent[1][7][4])]
    again, _ = exchange(product_of(value, value))
    assert msgspec.msgpack.decode(again[1][4][7], type=ProductChunk).words != opening[0]


def test_the_wrap_tells_nothing_of_a_count() -> None:
    """How often parts wrap round is chance: as often for a count of 0 as for a large one."""

    def wraps(value: int) -> NDArray[np.float64]:
        rng = np.random.default_rng(1)
        first, second = rng.integers(0, 2**64, (2, 4000), np.uint64)
        third = to_words(np.full(4000, value)) - first - second
        return np.bincount(
            [(int(a) + int(b) + int(c)) >> 64 for a, b, c in zip(first, second, third, strict=True)], minlength=3
        )

    assert np.array_equal(wraps(1), wraps(2**24 - 1))


def altered(kind: type, sender: int, receiver: int, at: int, **changes: object) -> Callable[[int, Messages], Messages]:
    """A post that changes one message on its way."""

    def post(exchange_number: int, messages: Messages) -> Messages:
        if exchange_number != at:
            return messages
        message = msgspec.msgpack.decode(messages[sender][receiver], type=kind)
        fields = {name: getattr(message, name) for name in kind.__struct_fields__}
        messages[sender][receiver] = msgspec.msgpack.encode(kind(**{**fields, **changes}))
        return messages

    return post


LIES = [
    (altered(ProductInput, 4, 7, 0, words=b"short"), "5 bytes of words where 48 were expected", 4),
    (altered(ProductInput, 4, SERVER, 0, words=b"x" * 48), "gets none of it", 4),
    (altered(ProductInput, SERVER, 4, 0, words=b"x" * 48), "gets none of it", SERVER),
    (altered(ProductInput, 7, 4, 0, seed=b"s"), "no valid nonce, key or seed", 7),
    (altered(ProductInput, SERVER, 7, 0, seed=b"s" * 32), "no valid nonce, key or seed", SERVER),
    (altered(ProductInput, 7, 4, 0, key=b""), "no valid nonce, key or seed", 7),
    (altered(ProductInput, 7, 4, 0, nonce=b""), "no valid nonce, key or seed", 7),
    (altered(ProductInput, 7, 4, 0, step=b"other"), "another step", 7),
    (altered(ProductInput, 7, 4, 0, nonce=b"n" * 16), "another step or attempt", 7),
    (altered(ProductInput, 4, 7, 0, words=b"\x01" * 48), "do not fit together", None),
    (altered(ProductChunk, 4, 7, 1, words=b"1234567"), "7 bytes of words where 32 were expected", 4),
    (altered(ProductChunk, 4, 7, 1, words=b"\x11" * 32), "do not fit together", None),
    (altered(ProductChunk, 4, 7, 1, number=0), "repeated or out of order", 4),
]


@pytest.mark.parametrize(("post", "reason", "party"), LIES)
def test_liars_are_found_out(post: Callable[[int, Messages], Messages], reason: str, party: int | None) -> None:
    left = np.arange(6).reshape(3, 2)
    with pytest.raises(SharesError, match=reason) as caught:
        exchange(product_of(left, left + 1, bits=24), post)
    assert caught.value.party in (party, 4, 7, SERVER)
    if "bytes" in reason or "valid" in reason or "gets none" in reason:
        assert caught.value.party == party


def test_messages_of_an_earlier_attempt_are_refused() -> None:
    left = np.arange(6).reshape(3, 2)
    earlier, _ = exchange(product_of(left, left))

    def post(number: int, messages: Messages) -> Messages:
        return messages if number != 1 else {**messages, 7: earlier[1][7]}

    with pytest.raises(SharesError, match="another step or attempt"):
        exchange(product_of(left, left), post)


def test_messages_that_cannot_be_read_are_refused() -> None:
    left = np.arange(6).reshape(3, 2)
    for junk in (b"", b"\x93\x01\x02\x03", msgspec.msgpack.encode({"step": 1})):
        parties = product_of(left, left, thresholds=[1] * 4, bits=24)
        with pytest.raises(SharesError, match="cannot be read"):
            parties[4].receive({7: junk, SERVER: junk})
    parties = product_of(left, left)
    with pytest.raises(SharesError, match="missing"):
        parties[4].receive({7: b""})
    with pytest.raises(SharesError, match="no part in this step"):
        parties[4].receive({99: b""})


def test_a_lie_within_the_comparison_is_found_out() -> None:
    left = np.ones((5, 1), np.int64)

    def post(number: int, messages: Messages) -> Messages:
        if number == 1:  # the first messages of the comparison of the highest bits
            messages[4][7] = msgspec.msgpack.encode(StepMessage(session=b"", number=0, mpyc_messages=[], result=b""))
        return messages

    with pytest.raises(SharesError) as caught:
        exchange(product_of(left, left, thresholds=[3], bits=24), post)
    assert caught.value.party == 4


def test_what_cannot_be_compared_is_refused() -> None:
    left = np.ones((2, 1), np.int64)
    with pytest.raises(ValueError, match="cannot be compared"):
        product_of(left, left, thresholds=[1], bits=40)
    with pytest.raises(ValueError, match="cannot be compared"):
        product_of(left, left, thresholds=[1, 2], bits=24)
    with pytest.raises(SharesError, match="at most"):
        product_of(np.ones((1, 2000), np.int64), np.ones((1, 2000), np.int64))
