"""Every message survives the wire; whatever is no message is refused in one line."""

import random
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from winnow.deploy.jobs import ipc_messages
from winnow.deploy.wire import messages
from winnow.deploy.wire.errors import WireError, one_line
from winnow.deploy.wire.message_codec import MAX_MESSAGE, decode, decode_request, decode_response, encode
from winnow.deploy.wire.messages import (
    Acknowledgement,
    Hello,
    ListJobs,
    Request,
    RequestRefusal,
    Resources,
    Response,
    WireMessage,
)

KINDS = sorted(WireMessage.__subclasses__(), key=lambda kind: kind.__name__)
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
_TEXTS = st.text(max_size=50)


def strategy(kind: object) -> st.SearchStrategy[Any]:
    """Values that fit a type of `messages`."""
    if kind == messages.Name:
        return NAMES
    if kind == messages.Digest:
        return DIGESTS
    if kind == messages.Count:
        return st.integers(0, 2**53)
    if kind == messages.PowerOfTwo:
        return st.integers(-100, 100)
    if kind == ipc_messages.RoundNumber:
        return st.integers(0, 2**31 - 1)
    plain = {
        str: _TEXTS,
        int: st.integers(-(2**63), 2**63),
        bool: st.booleans(),
        bytes: st.binary(max_size=50),
        type(None): st.none(),
    }
    if kind in plain:
        return plain[typing.cast(type, kind)]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.builds(kind, **{name: strategy(hint) for name, hint in hints.items()})
    return _composed(kind)


def _composed(kind: object) -> st.SearchStrategy[Any]:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is float:
        return st.floats(allow_nan=False)
    if origin is typing.Annotated:
        return st.floats(0, allow_nan=False) if inside[0] is float else strategy(inside[0])
    if origin is typing.Literal:
        return st.sampled_from(inside)
    if origin is list:
        return st.lists(strategy(inside[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(strategy(inside[0]), strategy(inside[1]), max_size=3)
    return st.one_of(*(strategy(each) for each in inside))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_every_message_round_trips(kind: type[WireMessage], data: st.DataObject) -> None:
    message = data.draw(strategy(kind))
    assert decode(encode(message), kind) == message
    if kind in typing.get_args(Request):
        assert decode_request(encode(message)) == message
    if kind in typing.get_args(Response):
        assert decode_response(encode(message)) == message


def refused(data: bytes) -> None:
    """Decoding fails in one line, or what comes out is a proper message that means the same."""
    for read in (decode_request, decode_response):
        outcome: Any
        try:
            outcome = read(data)
        except WireError as error:
            outcome = str(error)
        if isinstance(outcome, str):
            assert len(outcome.splitlines()) == 1
            assert len(outcome) < 600
        else:
            assert read(encode(outcome)) == outcome


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    refused(data)


@given(data=st.data())
def test_mutated_messages_are_refused_or_proper(data: st.DataObject) -> None:
    valid = bytearray(encode(data.draw(st.one_of(*(strategy(kind) for kind in KINDS)))))
    for _ in range(data.draw(st.integers(1, 4))):
        valid[data.draw(st.integers(0, len(valid) - 1))] = data.draw(st.integers(0, 255))
    refused(bytes(valid))


@given(data=st.data())
def test_truncated_messages_are_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    valid = encode(data.draw(strategy(kind)))
    cut = data.draw(st.integers(0, len(valid) - 1))
    with pytest.raises(WireError):
        decode(valid[:cut], kind)
    with pytest.raises(WireError, match="trailing"):
        decode(valid + b"\0", kind)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"type": "ListJobs", "job": "../../etc"}, "regex"),
        ({"type": "ListJobs", "job": "newline\n"}, "regex"),
        ({"type": "ListJobs", "job": "x" * 101}, "length"),
        ({"type": "ListJobs", "jobs": "unknown field"}, "unknown field"),
        ({"type": "No\nsuch"}, "Invalid value 'No such'"),
        ({"job": "no type"}, "missing required field"),
        ({"type": "GetUploadedSize", "job": "j", "blob": {"digest": "0" * 63, "size": 1}}, "regex"),
        ({"type": "GetUploadedSize", "job": "j", "blob": {"digest": "0" * 64, "size": -1}}, ">= 0"),
        ({"type": "AbortJob", "job": "j", "reason": "x" * 70_000}, "length"),
        ([], "Expected `object`"),
    ],
)
def test_what_does_not_fit_its_type_is_refused(raw: object, reason: str) -> None:
    with pytest.raises(WireError, match=reason) as error:
        decode_request(msgspec.msgpack.encode(raw))
    assert "\n" not in str(error.value)


def test_a_length_that_lies_costs_no_memory() -> None:
    for head in (b"\xdd", b"\xdf", b"\xc6", b"\xdb"):
        refused(head + b"\xff\xff\xff\xff")
        refused(b"\x83\xa4type\xa8AbortJob\xa3job\xa1j\xa6reason" + head + b"\xff\xff\xff\xf0")


def test_deep_nesting_is_refused() -> None:
    refused(b"\x91" * 1_000_000)
    refused(b"\x82\xa4type\xa8ListJobs\xa3job" + b"\x91" * 1_000_000)


def test_size_is_limited_both_ways() -> None:
    large = Hello(protocols=[1], winnow_version="1", data=["x" * 100] * 50_000, resources=Resources(), clock=0.0)
    with pytest.raises(WireError, match="too large to send"):
        encode(large)
    with pytest.raises(WireError, match="the limit is"):
        decode_request(msgspec.msgpack.encode(large))
    assert decode(encode(RequestRefusal(reason="x" * 65_536)), RequestRefusal).reason
    with pytest.raises(WireError, match="the limit is"):
        decode_request(random.Random(1).randbytes(MAX_MESSAGE + 1))


def test_requests_are_no_responses() -> None:
    with pytest.raises(WireError):
        decode_response(encode(ListJobs()))
    with pytest.raises(WireError):
        decode_request(encode(Acknowledgement()))


@given(st.text(max_size=2000))
def test_a_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    assert len(one_line(text)) <= 500


def test_greetings_and_refusals_of_protocol_1_are_read_so_that_versions_can_be_compared() -> None:
    old = {"type": "Hello", "protocols": [1], "winnow": "0.9", "data": [], "resources": {}, "now": 1.0, "more": 1}
    hello = decode_request(msgspec.msgpack.encode(old))
    assert isinstance(hello, Hello)
    assert (hello.protocols, hello.winnow_version, hello.clock) == ([1], "0.9", 1.0)
    reason = "this server speaks protocol 1, site plant-a speaks 2; update the older one"
    refusal = decode_response(msgspec.msgpack.encode({"type": "Refusal", "reason": reason, "again": True}))
    assert refusal == RequestRefusal(reason=reason, retry=True)
