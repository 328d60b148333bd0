"""Shamir shares of vectors in a prime field: any t shares say nothing, t + 1 give the secret (Shamir, 1979)."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.field_elements import Values, from_bytes, np_random_split, to_bytes
from winnow.privacy.shares.mpyc_library import from_mpyc


def threshold_of(parties: int) -> int:
    """So many parties together learn nothing: t < m/2."""
    return (parties - 1) // 2


@cache
def field_of(bits: int) -> Any:
    """The field of the largest prime with as many bits, rounded up to whole bytes."""
    finfields = from_mpyc("finfields")
    return finfields.GF(finfields.find_prime_root(-(-bits // 8) * 8)[0])


def make_shares(field: Any, values: Values, parties: int) -> list[Values]:
    """A share of each value for every party; party i holds the polynomial's value at i + 1."""
    return list(np_random_split(field, values.astype(object) % field.modulus, threshold_of(parties), parties))


def encode_shares(field: Any, shares: Values) -> bytes:
    return to_bytes(shares, field.byte_length)


def decode_shares(field: Any, data: bytes, length: int) -> Values:
    """As many elements of the field as there should be."""
    width = field.byte_length
    if len(data) != length * width:
        raise SharesError(f"{len(data)} bytes of shares where {length * width} were expected")
    shares = from_bytes(data, width)
    if np.any(shares >= field.modulus):
        raise SharesError("a share is not an element of the field")
    return shares


def recombine(field: Any, shares: Mapping[int, Values], parties: int) -> Values:
    """The secrets, signed. All shares must lie on one polynomial of degree t: of 2t + 1 or more, t wrong ones show."""
    needed = threshold_of(parties) + 1
    points = [(party + 1, share) for party, share in sorted(shares.items())]
    others = [x for x, _ in points[needed:]]
    secret, *expected = from_mpyc("thresha").np_recombine(field, points[:needed], [0, *others])
    for (_, share), value in zip(points[needed:], expected, strict=True):
        if np.any(share != value.value):
            raise SharesError("the parties' shares of the result do not fit together: one of them is wrong")
    values: Values = secret.signed_()
    return values
