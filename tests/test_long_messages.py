"""Lists of keys that are longer than a message go in parts; whoever sends wrong ones is named."""

import msgspec
import pytest

from winnow.privacy.set_intersection import match_party
from winnow.privacy.set_intersection.long_messages import MAX_PARTS, NEXT, LongMessages
from winnow.privacy.set_intersection.match_party import MatchParty, MatchStep
from winnow.privacy.shares.errors import SharesError


@pytest.mark.parametrize("length", [0, 9, 10, 11, 95])
def test_a_message_arrives_as_it_was_sent(length: int) -> None:
    sender, receiver, message = LongMessages(10), LongMessages(10), b"\xc1" * length
    carried, exchanges = sender.send(2, message), 0
    while True:
        whole, asked = receiver.receive(1, carried)
        if whole is not None:
            break
        nothing, answer = sender.receive(2, asked[1])
        assert nothing is None
        carried, exchanges = answer[2], exchanges + 1
    assert (whole, exchanges) == (message, max(0, -(-length // 10) - 1))
    assert not sender.waiting


def part(left: int, body: bytes = b"x") -> bytes:
    return msgspec.msgpack.encode((left, body))


@pytest.mark.parametrize(
    "frames", [[part(2), part(2)], [part(2), part(0)], [part(MAX_PARTS)], [part(-2)], [part(1), b"\xc1"], [NEXT]]
)
def test_parts_that_do_not_fit_end_it_with_one_line(frames: list[bytes]) -> None:
    receiver = LongMessages(10)
    *before, last = frames
    for frame in before:
        receiver.receive(1, frame)
    with pytest.raises(SharesError) as refused:
        receiver.receive(1, last)
    assert refused.value.party == 1
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("reveal", ["intersection", "size"])
def test_three_parties_match_lists_that_go_in_parts(reveal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_party, "MESSAGE_BYTES", 400)
    step = MatchStep(
        digest=b"d" * 32, everybody=(0, 1, 2), parties=(0, 1, 2), reveal=reveal, share=reveal != "size", minimum=1
    )
    lists = [[f"person {place}" for place in range(start, start + 60)] for start in (0, 20, 30)]
    parties = {me: MatchParty(step, me, own) for me, own in enumerate(lists)}
    letters, longest, exchanges = {me: each.first_messages() for me, each in parties.items()}, 0, 0
    while any(letters.values()):
        waiting: dict[int, dict[int, bytes]] = {}
        for sender, written in letters.items():
            for to, message in written.items():
                waiting.setdefault(to, {})[sender] = message
                longest = max(longest, len(message))
        letters = {to: parties[to].receive(messages) for to, messages in waiting.items()}
        exchanges += 1
    assert [each.opened.tolist() for each in parties.values()] == [[1, 30]] * 3
    assert longest < 300
    assert 10 < exchanges <= step.max_exchanges
