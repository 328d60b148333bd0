"""Two-party set intersection by Diffie–Hellman on the curve P-256: exact, without a filter's false positives.

The asking side multiplies the points of its identifiers by a secret number of its own; the answering side multiplies
those once more by its secret number, and its own points once. The order of the two does not matter, so what both sides
have looks the same after both, and like chance otherwise (Meadows, 1986; Huberman, Franklin and Hogg, 1999).

Points travel as x-coordinates alone: P and -P have the same, and so have all their multiples. The curve has a prime
order and every coordinate that arrives is checked to be on it, so there is no small group to fall into. Multiplication
is OpenSSL's, which takes the same time for every secret.

Lists are padded with points of nobody: their lengths tell a number of identifiers to within a quarter.
"""

from collections.abc import Iterable, Sequence
from secrets import SystemRandom
from typing import Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.set_intersection.hash_to_p256 import COORDINATE_BYTES, hash_to_x

Reveal: TypeAlias = Literal["intersection", "size"]

CURVE = ec.SECP256R1()
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
DOMAIN = b"winnow set intersection with P256_XMD:SHA-256_SSWU_RO_"
EVEN = b"\2"
"""Before an x-coordinate: of its two points, the one with an even y."""
SMALLEST_LIST = 16
PADDING_STEPS = 4
"""Lengths of lists are 4, 5, 6 or 7 times a power of two."""


class PsiMessageError(ValueError):
    """A message that is not what it should be, in one line."""


class _Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    reveal: Reveal
    points: bytes


class _Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    asked: bytes
    """The points of the request, multiplied once more: in their order, or mixed if only the size may be told."""
    own: bytes
    """The answering side's points, multiplied once, mixed."""


class PsiQuery:
    """The side that learns: made for one question."""

    def __init__(self, identifiers: Sequence[str], reveal: Reveal, fill: int = 0) -> None:
        """A question about fewer than `fill` identifiers is filled up with others, that nobody has: how many are left
        of them is nobody's business.
        """
        self._identifiers, self._reveal = list(identifiers), reveal
        self._length = padded_length(max(fill, len(identifiers)))
        self._secret = ec.generate_private_key(CURVE)

    def request(self) -> bytes:
        own = [times(self._secret, point(hash_to_x(each.encode(), DOMAIN))) for each in self._identifiers]
        return msgspec.msgpack.encode(_Request(self._reveal, b"".join([*own, *fillers(self._length - len(own))])))

    def found(self, answer: bytes) -> list[str]:
        """What both sides have."""
        asked, theirs = self._read(answer)
        return [name for name, each in zip(self._identifiers, asked, strict=False) if each in theirs]

    def size(self, answer: bytes) -> int:
        """How many both sides have; all that can be learnt if that was the question."""
        asked, theirs = self._read(answer)
        return sum(each in theirs for each in asked)

    def _read(self, data: bytes) -> tuple[list[bytes], set[bytes]]:
        """The points of the question without this side's secret, and the other side's: equal where both have one."""
        try:
            answer = from_msgpack(data, _Answer)
        except UnreadableError as error:
            raise PsiMessageError("the answer cannot be read") from error
        asked, theirs = split_points(answer.asked), {*split_points(answer.own)}
        if len(asked) != self._length:
            raise PsiMessageError(f"the answer is about {len(asked):,} identifiers, not {self._length:,}")
        inverse = ec.derive_private_key(pow(self._secret.private_numbers().private_value, -1, ORDER), CURVE)
        return [times(inverse, point(each)) for each in asked], theirs


def answer_query(request: bytes, identifiers: Sequence[str], reveal: Reveal, most: int) -> bytes:
    """The other side's part. A question for more than it reveals, or about too many identifiers, is refused."""
    try:
        question = from_msgpack(request, _Request)
    except UnreadableError as error:
        raise PsiMessageError("the query cannot be read") from error
    if question.reveal != reveal:
        raise PsiMessageError(f'the question is for another thing than the "{reveal}", which this site reveals')
    points = split_points(question.points)
    if len(points) > (limit := padded_length(most)):
        raise PsiMessageError(f"the query has {len(points):,} identifiers; this site accepts at most {limit:,}")
    secret = ec.generate_private_key(CURVE)
    asked = [times(secret, point(each)) for each in points]
    own = [times(secret, point(hash_to_x(each.encode(), DOMAIN))) for each in identifiers]
    own.extend(fillers(padded_length(len(own)) - len(own)))
    mixed = [own] if reveal == "intersection" else [own, asked]
    for each in mixed:
        SystemRandom().shuffle(each)
    return msgspec.msgpack.encode(_Answer(b"".join(asked), b"".join(own)))


def padded_length(count: int) -> int:
    """The length of a list of so many identifiers: at most a quarter more, and so it does not tell how many."""
    step = 1 << max(0, (max(count, SMALLEST_LIST) - 1).bit_length() - PADDING_STEPS.bit_length())
    return -(-max(count, SMALLEST_LIST) // step) * step


def fillers(count: int) -> Iterable[bytes]:
    """Points of nobody: chance, like all the others look."""
    for _ in range(count):
        numbers = ec.generate_private_key(CURVE).public_key().public_numbers()
        yield numbers.x.to_bytes(COORDINATE_BYTES)


def split_points(points: bytes) -> list[bytes]:
    if len(points) % COORDINATE_BYTES:
        raise PsiMessageError("a list of encrypted identifiers is cut off")
    return [points[start : start + COORDINATE_BYTES] for start in range(0, len(points), COORDINATE_BYTES)]


def point(x: bytes) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, EVEN + x)
    except ValueError as error:
        raise PsiMessageError("a list has elements that are not valid encrypted identifiers") from error


def times(secret: ec.EllipticCurvePrivateKey, point: ec.EllipticCurvePublicKey) -> bytes:
    """The x-coordinate of a multiple of the point: what a Diffie–Hellman exchange gives."""
    return secret.exchange(ec.ECDH(), point)
