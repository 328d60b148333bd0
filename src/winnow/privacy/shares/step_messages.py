"""What parties write to each other in a step. Whoever carries messages may lose, repeat or swap them."""

from typing import NamedTuple, TypeVar

import msgspec

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.shares.errors import SharesError

MESSAGE_BYTES = 3 << 20
"""Of words that a party gets in one exchange, at most: sites take no task of 4 MiB."""
T = TypeVar("T")


class MpycMessage(NamedTuple):
    """One of MPyC's messages, labelled by the place in the program that waits for it."""

    place: int
    data: bytes


class InputMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The addressee's share of the sender's input, and keys of pseudorandom shares that both hold.

    `step` is the step's digest: of all that led to it. The nonce makes this attempt unlike any other of the same step.
    """

    step: bytes
    nonce: bytes
    shares: bytes
    keys: list[bytes]


class StepMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A later message. `session` is made of the step's digest and the parties' nonces, and a sender numbers what it
    writes to an addressee: a message of another step, attempt or time does not fit.
    """

    session: bytes
    number: int
    mpyc_messages: list[MpycMessage]
    result: bytes
    """The sender's share of the result, once it has it."""


def decode_step_message(data: bytes, kind: type[T], sender: int) -> T:
    try:
        return from_msgpack(data, kind)
    except UnreadableError as error:
        raise SharesError("its message cannot be read", sender) from error
