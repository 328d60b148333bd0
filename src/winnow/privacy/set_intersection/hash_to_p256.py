"""Identifiers to points of the curve P-256, as RFC 9380 does it: the suite P256_XMD:SHA-256_SSWU_RO_.

Only what a site does with its own identifiers is computed here, in time that depends on them; secret keys never enter.
"""

from hashlib import sha256

try:
    from gmpy2 import powmod  # several times as fast
except ImportError:
    powmod = pow

P = 2**256 - 2**224 + 2**192 + 2**96 - 1
A = P - 3
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
Z = P - 10

FIELD_BYTES = 48
"""L of section 5.3: 256 bits, and 128 more so that the remainder modulo P is as good as uniform."""
HASH_BYTES = 32
BLOCK_BYTES = 64
COORDINATE_BYTES = 32

_C1 = -B * pow(A, -1, P) % P
_C2 = -pow(Z, -1, P) % P

Point = tuple[int, int]


def hash_to_x(identifier: bytes, domain: bytes) -> bytes:
    """The x-coordinate of the identifier's point. `domain` tells one use of the hash from another."""
    x, _ = hash_to_point(identifier, domain)
    return x.to_bytes(COORDINATE_BYTES)


def hash_to_point(message: bytes, domain: bytes) -> Point:
    """hash_to_curve of section 3; the curve has no cofactor to be cleared."""
    uniform = _expand(message, domain, 2 * FIELD_BYTES)
    first, second = (int.from_bytes(each) % P for each in (uniform[:FIELD_BYTES], uniform[FIELD_BYTES:]))
    return _sum(_map_to_curve(first), _map_to_curve(second))


def _expand(message: bytes, domain: bytes, length: int) -> bytes:
    """expand_message_xmd of section 5.3.1."""
    suffix = domain + bytes([len(domain)])
    start = sha256(bytes(BLOCK_BYTES) + message + length.to_bytes(2) + b"\0" + suffix).digest()
    block = sha256(start + b"\1" + suffix).digest()
    blocks = [block]
    for number in range(2, -(-length // HASH_BYTES) + 1):
        mixed = bytes(left ^ right for left, right in zip(start, block, strict=True))
        block = sha256(mixed + bytes([number]) + suffix).digest()
        blocks.append(block)
    return b"".join(blocks)[:length]


def _map_to_curve(u: int) -> Point:
    """The simplified Shallue–van de Woestijne–Ulas map of section 6.6.2."""
    zu = Z * u * u % P
    denominator = (zu * zu + zu) % P
    x = _C1 * (1 + _inverse(denominator)) % P if denominator else _C1 * _C2 % P
    squared = _curve(x)
    y = _root(squared)
    if y * y % P != squared:
        x = zu * x % P
        y = _root(_curve(x))
    return x, y if y % 2 == u % 2 else P - y


def _curve(x: int) -> int:
    return (x * x * x + A * x + B) % P


def _sum(first: Point, second: Point) -> Point:
    """The sum of two points. They are equal or opposite with a chance that no identifier will ever have."""
    (x1, y1), (x2, y2) = first, second
    slope = (y2 - y1) * _inverse((x2 - x1) % P) % P if x1 != x2 else (3 * x1 * x1 + A) * _inverse(2 * y1 % P) % P
    x = (slope * slope - x1 - x2) % P
    return x, (slope * (x1 - x) - y1) % P


def _inverse(value: int) -> int:
    return int(powmod(value, -1, P))


def _root(value: int) -> int:
    """The square root, if the value is a square: P is 3 modulo 4."""
    return int(powmod(value, (P + 1) // 4, P))
