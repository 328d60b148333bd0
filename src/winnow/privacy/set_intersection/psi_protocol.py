"""Two-party set intersection by openmined-psi: Diffie-Hellman on a curve, exact, without a filter's false positives.

The asking side encrypts its identifiers with a key of its own; the answering side encrypts those once more with its
key, and its own once. Both keys commute, so what both sides have looks the same after both, and like chance otherwise.
"""

from collections.abc import Sequence
from importlib import import_module
from secrets import token_hex
from typing import Any, Literal, TypeAlias

import msgspec

from winnow.core import ConfigError
from winnow.core.installed_package import install_command
from winnow.core.message_decoding import UnreadableError, from_msgpack

Reveal: TypeAlias = Literal["intersection", "size"]

FILLER_BYTES = 32
FALSE_POSITIVE_RATE = 1e-9
"""A rate of false positives, which the library asks for and does not use where whole lists are sent."""


class PsiMessageError(ValueError):
    """A message that is not what it should be, in one line."""


class PsiQuery:
    """The side that learns: made for one question."""

    def __init__(self, identifiers: Sequence[str], reveal: Reveal, fill: int = 0) -> None:
        """A question about fewer than `fill` identifiers is filled up with others, that nobody has: how many are left
        of them is nobody's business.
        """
        others = (token_hex(FILLER_BYTES) for _ in range(fill - len(identifiers)))
        self._identifiers, self._reveal = [*identifiers, *others], reveal
        self._client = library().client.CreateWithNewKey(reveal == "intersection")

    def request(self) -> bytes:
        message: bytes = self._client.CreateRequest(self._identifiers).SerializeToString()
        return message

    def found(self, answer: bytes) -> list[str]:
        """What both sides have."""
        places = self._client.GetIntersection(*_read_answer(answer))
        return [self._identifiers[place] for place in sorted(places)]

    def size(self, answer: bytes) -> int:
        """How many both sides have; all that can be learnt if that was the question."""
        return int(self._client.GetIntersectionSize(*_read_answer(answer)))


def answer_query(request: bytes, identifiers: Sequence[str], reveal: Reveal, most: int) -> bytes:
    """The other side's part. A question for more than it reveals, or about too many identifiers, is refused."""
    psi = library()
    question = _parsed(psi.Request, request)
    if question.reveal_intersection != (reveal == "intersection"):
        raise PsiMessageError(f'the question is for another thing than the "{reveal}", which this site reveals')
    asked = len(question.encrypted_elements)
    if asked > most:
        raise PsiMessageError(f"the query has {asked:,} identifiers; this site accepts at most {most:,}")
    server = psi.server.CreateWithNewKey(reveal == "intersection")
    setup = server.CreateSetupMessage(FALSE_POSITIVE_RATE, asked, list(identifiers), psi.DataStructure.RAW)
    try:
        response = server.ProcessRequest(question)
    except (RuntimeError, ValueError) as error:
        raise PsiMessageError("the query has elements that are not valid encrypted identifiers") from error
    return msgspec.msgpack.encode([setup.SerializeToString(), response.SerializeToString()])


def _read_answer(data: bytes) -> tuple[Any, Any]:
    psi = library()
    try:
        setup, response = from_msgpack(data, tuple[bytes, bytes])
    except UnreadableError as error:
        raise PsiMessageError("the answer cannot be read") from error
    return _parsed(psi.ServerSetup, setup), _parsed(psi.Response, response)


def _parsed(kind: Any, data: bytes) -> Any:
    unreadable: type[Exception] = import_module("google.protobuf.message").DecodeError
    try:
        return kind.FromString(data)
    except unreadable as error:
        raise PsiMessageError("a message cannot be read") from error


def library() -> Any:
    """openmined-psi, which few need and which wants a version of protobuf of its own."""
    try:
        return import_module("private_set_intersection.python")
    except ImportError as error:
        raise ConfigError(f"set intersection needs an extra: {install_command('intersection')}") from error
