"""Two-party set intersection: the hash of RFC 9380, an independent calculation on the curve, and liars."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.privacy.set_intersection.hash_to_p256 import A, B, P, hash_to_point, hash_to_x
from winnow.privacy.set_intersection.psi_protocol import (
    DOMAIN,
    ORDER,
    PsiMessageError,
    PsiQuery,
    Reveal,
    answer_query,
    padded_length,
)

RFC_DOMAIN = b"QUUX-V01-CS02-with-P256_XMD:SHA-256_SSWU_RO_"
RFC_VECTORS = {  # appendix J.1.1
    b"": (
        "2c15230b26dbc6fc9a37051158c95b79656e17a1a920b11394ca91c44247d3e4",
        "8a7a74985cc5c776cdfe4b1f19884970453912e9d31528c060be9ab5c43e8415",
    ),
    b"abc": (
        "0bb8b87485551aa43ed54f009230450b492fead5f1cc91658775dac4a3388a0f",
        "5c41b3d0731a27a7b14bc0bf0ccded2d8751f83493404c84a88e71ffd424212e",
    ),
    b"abcdef0123456789": (
        "65038ac8f2b1def042a5df0b33b1f4eca6bff7cb0f9c6c1526811864e544ed80",
        "cad44d40a656e7aff4002a8de287abc8ae0482b5ae825822bb870d6df9b56ca3",
    ),
    b"q128_" + b"q" * 128: (
        "4be61ee205094282ba8a2042bcb48d88dfbb609301c49aa8b078533dc65a0b5d",
        "98f8df449a072c4721d241a3b1236d3caccba603f916ca680f4539d2bfb3c29e",
    ),
    b"a512_" + b"a" * 512: (
        "457ae2981f70ca85d8e24c308b14db22f3e3862c5ea0f652ca38b5e49cd64bc5",
        "ecb9f0eadc9aeed232dabc53235368c1394c78de05dd96893eefa62b0f4757dc",
    ),
}
MANY = 1000
Point = tuple[int, int] | None


@pytest.mark.parametrize("message", RFC_VECTORS)
def test_the_hash_is_that_of_the_standard(message: bytes) -> None:
    x, y = hash_to_point(message, RFC_DOMAIN)
    assert (f"{x:064x}", f"{y:064x}") == RFC_VECTORS[message]


def multiplied(scalar: int, point: Point) -> Point:
    """Double and add, as in a schoolbook."""
    found: Point = None
    while scalar:
        if scalar & 1:
            found = added(found, point)
        point, scalar = added(point, point), scalar >> 1
    return found


def added(first: Point, second: Point) -> Point:
    if first is None or second is None:
        return first or second
    (x1, y1), (x2, y2) = first, second
    if x1 == x2 and (y1 + y2) % P == 0:
        return None
    slope = (y2 - y1) * pow(x2 - x1, -1, P) if x1 != x2 else (3 * x1 * x1 + A) * pow(2 * y1, -1, P)
    x = (slope * slope - x1 - x2) % P
    return x, (slope * (x1 - x) - y1) % P


def test_a_request_holds_the_points_times_the_secret() -> None:
    query = PsiQuery(["ann", "bob"], "intersection")
    _, points = msgspec.msgpack.decode(query.request())
    secret = query._secret.private_numbers().private_value
    for place, name in enumerate([b"ann", b"bob"]):
        x, y = hash_to_point(name, DOMAIN)
        assert (y * y - x**3 - A * x - B) % P == 0
        expected = multiplied(secret, (x, y))
        assert expected is not None
        assert points[32 * place : 32 * (place + 1)] == expected[0].to_bytes(32)
    assert multiplied(ORDER, hash_to_point(b"ann", DOMAIN)) is None


identifiers = st.lists(st.text(min_size=0, max_size=8), max_size=25, unique=True)


@settings(max_examples=15, deadline=None)
@given(first=identifiers, second=identifiers)
def test_what_is_found_is_the_intersection(first: list[str], second: list[str]) -> None:
    query = PsiQuery(first, "intersection")
    found = query.found(answer_query(query.request(), second, "intersection", MANY))
    assert {*found} == {*first} & {*second}
    counting = PsiQuery(first, "size")
    assert counting.size(answer_query(counting.request(), second, "size", MANY)) == len({*first} & {*second})


def test_where_the_size_is_asked_places_tell_nothing() -> None:
    """The first half is in common. Mixed, about as much of it is in the first half of the answer as in the second."""
    names = [str(i) for i in range(96)]
    query = PsiQuery(names, "size")
    answer = answer_query(query.request(), names[:48], "size", MANY)
    asked, theirs = query._read(answer)
    hits = [point in theirs for point in asked]
    assert sum(hits) == 48
    assert 8 <= sum(hits[:48]) <= 40  # 24 on average; outside once in 10^9 times


@pytest.mark.parametrize("count", [0, 1, 16, 17, 63, 64, 65, 100, 1000, 99_999])
def test_lengths_are_padded_by_a_quarter_at_most(count: int) -> None:
    length = padded_length(count)
    assert count <= length <= max(16, 1.25 * count)
    assert length % (1 << (length.bit_length() - 3)) == 0


def test_numbers_of_identifiers_do_not_show() -> None:
    lengths = {len(PsiQuery([str(i) for i in range(count)], "size").request()) for count in range(49, 57)}
    assert len(lengths) == 1
    question = PsiQuery(["a"], "size").request()
    answers = {len(answer_query(question, [str(i) for i in range(count)], "size", MANY)) for count in range(49, 57)}
    assert len(answers) == 1


def not_on_the_curve() -> bytes:
    for x in range(P - 1, 0, -1):  # some x; half of them are on the curve
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\2" + x.to_bytes(32))
        except ValueError:
            return x.to_bytes(32)
    raise AssertionError


@pytest.mark.parametrize(
    "points", [bytes(31), P.to_bytes(32), b"\xff" * 32, not_on_the_curve(), hash_to_x(b"a", DOMAIN) + bytes(1)]
)
def test_points_that_are_none_are_refused(points: bytes) -> None:
    with pytest.raises(PsiMessageError):
        answer_query(msgspec.msgpack.encode(["size", points]), ["a"], "size", MANY)
    query = PsiQuery(["a"], "size")
    fair = msgspec.msgpack.decode(answer_query(query.request(), ["a"], "size", MANY))
    with pytest.raises(PsiMessageError):
        query.size(msgspec.msgpack.encode([16 * points, fair[1]]))


@pytest.mark.parametrize("reveal", ["intersection", "size"])
def test_an_answer_about_another_number_of_identifiers_is_refused(reveal: Reveal) -> None:
    query, other = PsiQuery(["a"], reveal), PsiQuery([str(i) for i in range(40)], reveal)
    answer = answer_query(other.request(), ["a"], reveal, MANY)
    with pytest.raises(PsiMessageError, match="the answer is about 40 identifiers, not 16"):
        query.size(answer)


def test_another_question_than_the_site_reveals_is_refused() -> None:
    with pytest.raises(PsiMessageError, match='than the "size"'):
        answer_query(PsiQuery(["a"], "intersection").request(), ["a"], "size", MANY)
