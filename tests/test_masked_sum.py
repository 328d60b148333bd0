"""Sums under pairwise masks: exact, the same at every party, and nothing that a lying server can change."""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pytest

from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.masked_sum import (
    CHECK_WORDS,
    MaskedStep,
    MaskedSumParty,
    MaskedSumServer,
    MaskKeys,
    SummedVector,
    VectorProgram,
    WordsMessage,
)

SERVER = -1
Change = Callable[[dict[int, bytes]], dict[int, bytes]]


def chain(values: np.ndarray | None) -> VectorProgram:
    """Sums the values, then each times the first sum's sign; returns both totals' first entries."""
    first = yield SummedVector(length=4, values=values)
    sign = 1 if first[0] >= 0 else -1
    second = yield SummedVector(length=2, values=None if values is None else sign * values[:2])
    return np.array([first[0], second[1]], np.int64)


def step_of(owners: int, *, masked: bool = True, digest: bytes = b"step") -> MaskedStep:
    return MaskedStep(digest=digest, everybody=tuple(range(owners)), server=SERVER, sums=2, masked=masked)


def run(
    step: MaskedStep, inputs: list[np.ndarray], keys: list[MaskKeys], on_sum: Change = lambda messages: messages
) -> tuple[list[MaskedSumParty], MaskedSumServer, list[bytes]]:
    """Carries messages until everybody is done; also what the server received."""
    parties = [MaskedSumParty(step, me, chain(own), keys[me]) for me, own in enumerate(inputs)]
    server, seen = MaskedSumServer(step, chain(None)), list[bytes]()
    written = {me: party.first_messages() for me, party in enumerate(parties)}
    while any(written.values()):
        to_server = {me: own[SERVER] for me, own in written.items() if SERVER in own}
        answers: Mapping[int, bytes] = {}
        if to_server:
            seen += to_server.values()
            answers = on_sum(server.receive(to_server))
        arriving = {
            me: {**{sender: own[me] for sender, own in written.items() if me in own}, **_from_server(answers, me)}
            for me in range(len(parties))
        }
        written = {me: parties[me].receive(own) if own else {} for me, own in arriving.items()}
    return parties, server, seen


def _from_server(answers: Mapping[int, bytes], me: int) -> dict[int, bytes]:
    return {SERVER: answers[me]} if me in answers else {}


def inputs_of(owners: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(-(1 << 40), 1 << 40, (owners, 4)))


@pytest.mark.parametrize("owners", [2, 3, 7])
@pytest.mark.parametrize("masked", [True, False])
def test_everybody_opens_the_exact_sums(owners: int, masked: bool) -> None:
    inputs = inputs_of(owners)
    parties, server, _ = run(step_of(owners, masked=masked), inputs, [MaskKeys() for _ in inputs])
    first = int(sum(int(own[0]) for own in inputs))
    second = int(sum(int(own[1]) for own in inputs)) * (1 if first >= 0 else -1)
    assert server.opened is not None
    assert server.opened.tolist() == [first, second]
    assert all(party.opened.tolist() == [first, second] for party in parties)
    assert server.cells == 6


def test_keys_are_agreed_once_and_masks_never_repeat() -> None:
    inputs, keys = inputs_of(3), [MaskKeys() for _ in range(3)]
    _, _, seen = run(step_of(3), inputs, keys)
    agreed = [dict(own.pairs) for own in keys]
    _, _, again = run(step_of(3, digest=b"next"), inputs, keys)
    assert [own.pairs for own in keys] == agreed
    words = [msgspec.msgpack.decode(each, type=WordsMessage).words for each in (*seen, *again)]
    assert len({*words}) == len(words)
    plain = [own.astype("<i8").tobytes() for own in inputs]
    assert not any(each[: len(own)] == own for each in words for own in plain)


def test_what_the_server_sees_of_an_owner_does_not_depend_on_its_numbers() -> None:
    """Of 3,000 masked words about half of the bits are set, of inputs that are all 0."""
    bits = []
    for _ in range(100):
        _, _, seen = run(step_of(3), [np.zeros(4, np.int64)] * 3, [MaskKeys() for _ in range(3)])
        words = msgspec.msgpack.decode(seen[0], type=WordsMessage).words
        bits.append(np.unpackbits(np.frombuffer(words, np.uint8)).mean())
    assert np.mean(bits) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("add", [1, -1, 1 << 20, 1 << 40, 1 << 51])
def test_a_server_that_tells_another_sum_is_found_out(add: int) -> None:
    def lie(messages: dict[int, bytes]) -> dict[int, bytes]:
        return {me: _changed(message, 0, add) if me == 1 else message for me, message in messages.items()}

    with pytest.raises(SharesError, match="not that of what the owners sent"):
        run(step_of(3), inputs_of(3), [MaskKeys() for _ in range(3)], lie)


def test_a_server_cannot_tell_a_multiple_of_the_sum() -> None:
    """Check words that were linear without an offset would let it: twice the sum has twice their value."""

    def double(messages: dict[int, bytes]) -> dict[int, bytes]:
        return {me: _doubled(message) for me, message in messages.items()}

    with pytest.raises(SharesError, match="not that of what the owners sent"):
        run(step_of(3), [np.arange(4)] * 3, [MaskKeys() for _ in range(3)], double)


def test_a_server_that_leaves_an_owner_out_or_repeats_a_sum_is_found_out() -> None:
    step, inputs = step_of(3), inputs_of(3)
    kept = list[dict[int, bytes]]()

    def repeat(messages: dict[int, bytes]) -> dict[int, bytes]:
        kept.append(messages)
        return kept[0]

    with pytest.raises(SharesError, match="repeated or out of order"):
        run(step, inputs, [MaskKeys() for _ in inputs], repeat)
    server = MaskedSumServer(step, chain(None))
    with pytest.raises(SharesError, match="missing"):
        server.receive({0: b"", 1: b""})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x00", "cannot be read"),
        (msgspec.msgpack.encode(WordsMessage(step=b"other", number=0, words=bytes(56))), "another step"),
        (msgspec.msgpack.encode(WordsMessage(step=b"step", number=1, words=bytes(56))), "out of order"),
        (msgspec.msgpack.encode(WordsMessage(step=b"step", number=0, words=bytes(48))), "56 were expected"),
    ],
)
def test_an_owner_that_sends_anything_else_is_named(message: bytes, reason: str) -> None:
    assert 8 * (4 + CHECK_WORDS) == 56
    honest = msgspec.msgpack.encode(WordsMessage(step=b"step", number=0, words=bytes(56)))
    with pytest.raises(SharesError, match=reason) as caught:
        MaskedSumServer(step_of(2), chain(None)).receive({0: honest, 1: message})
    assert caught.value.party == 1


def test_numbers_that_no_sum_can_hold_are_one_line() -> None:
    large = np.full(4, 1 << 52)
    with pytest.raises(SharesError, match="its rows are too many: a sum over them has more than 52 bits"):
        run(step_of(2), [large, large], [MaskKeys() for _ in range(2)])
    half = np.full(4, 3 << 50)
    with pytest.raises(SharesError, match="a sum is larger than it can be"):
        run(step_of(2), [half, half], [MaskKeys() for _ in range(2)])


def test_vectors_that_are_too_long_are_one_line() -> None:
    def long(first: int) -> VectorProgram:
        yield SummedVector(length=first, values=None)
        yield SummedVector(length=1 << 23, values=None)
        return np.zeros(0, np.int64)

    with pytest.raises(SharesError, match="8,388,608 numbers would be summed at once; at most 4,194,304 are possible"):
        MaskedSumServer(step_of(2), long(1 << 23))
    server = MaskedSumServer(step_of(2, masked=False), long(1))
    words = msgspec.msgpack.encode(WordsMessage(step=b"step", number=0, words=bytes(8)))
    with pytest.raises(SharesError, match="8,388,608 numbers"):
        server.receive({0: words, 1: words})


def test_keys_of_another_step_or_length_are_refused() -> None:
    step = step_of(2)
    theirs = MaskedSumParty(step_of(2, digest=b"other"), 1, chain(np.zeros(4, np.int64)), MaskKeys())
    mine = MaskedSumParty(step, 0, chain(np.zeros(4, np.int64)), MaskKeys())
    with pytest.raises(SharesError, match="about another step"):
        mine.receive({1: theirs.first_messages()[0]})
    with pytest.raises(SharesError, match="keys have another length"):
        mine.receive({1: msgspec.msgpack.encode((b"step", b"short", b"short"))})
    with pytest.raises(SharesError, match="no part in this step"):
        mine.receive({5: b""})


def _changed(message: bytes, place: int, add: int) -> bytes:
    told = msgspec.msgpack.decode(message, type=WordsMessage)
    words = np.frombuffer(told.words, "<i8").copy()
    words[place] += add
    return msgspec.msgpack.encode(msgspec.structs.replace(told, words=words.tobytes()))


def _doubled(message: bytes) -> bytes:
    told = msgspec.msgpack.decode(message, type=WordsMessage)
    return msgspec.msgpack.encode(
        msgspec.structs.replace(told, words=(np.frombuffer(told.words, "<u8") * np.uint64(2)).tobytes())
    )
