"""How many rows of a client differ from one another: a few rows, copied, teach a model little."""

import math

import torch
from torch import Tensor

from winnow.learn.client_quality.findings import Finding, finding_strength

MIN_ROWS = 10
_NEWTON_STEPS = 10
"""Half of them give six digits, however many rows repeat others."""
_CHUNK_NUMBERS = 1 << 20
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
"""2⁶⁴ / golden ratio, as a signed number."""


def distinct_rows(x: Tensor) -> int:
    """How many of the rows [n, …] differ: rows are told apart by a hash of 64 bits."""
    if not len(x):
        return 0
    flat = x.detach().flatten(1)
    weights = _weights(flat.shape[1], x.device)
    chunk = max(1, _CHUNK_NUMBERS // max(flat.shape[1], 1))
    hashes = torch.cat([(_words(part) * weights).sum(1) for part in torch.split(flat, chunk)])
    return len(torch.unique(hashes))


def _words(rows: Tensor) -> Tensor:
    """The bits of each number, scrambled; both zeros are one."""
    words = (rows.float() + 0.0).view(torch.int32) if rows.is_floating_point() else rows
    words = words.long() * _MULTIPLIER
    return words ^ (words >> 32)


def _weights(count: int, device: torch.device) -> Tensor:
    """An odd number for each place, so that rows with the same numbers in another order differ."""
    places = torch.arange(1, count + 1, device=device) * _MULTIPLIER
    return ((places ^ (places >> 29)) * _MULTIPLIER) | 1


def expected_distinct(rows: int, reference_rows: int, reference_distinct: int) -> float:
    """At least how many of n rows differ if they come from where the reference's N do, of which D differ.

    Of fewer rows than N, at least the share D / N: repeats are rarer among fewer rows. Of more, at least as many as of
    draws from U equally frequent rows, U (1 − exp(−N / U)) = D: where frequencies are unequal, more differ.
    """
    differ = min(reference_distinct, max(reference_rows - 1, 0.5))  # the next row might have been a repeat
    share = differ / reference_rows
    if rows <= reference_rows:
        return rows * share
    ratio = 2 * (1 - share) / share  # N / U: above the root, from where Newton's method falls
    for _ in range(_NEWTON_STEPS):
        ratio -= (-math.expm1(-ratio) - share * ratio) / (math.exp(-ratio) - share)
    universe = reference_rows / ratio
    return -universe * math.expm1(-rows / universe)


def independent_share(rows: int, distinct: int | None, reference_rows: int, reference_distinct: int | None) -> float:
    """The share of rows that are evidence of their own, since copies are none; 1 where nobody counted."""
    if distinct is None or not reference_distinct or not rows:
        return 1.0
    return min(1.0, distinct / max(expected_distinct(rows, reference_rows, reference_distinct), 1.0))


def copy_findings(
    rows: int, distinct: int | None, reference_rows: int, reference_distinct: int | None
) -> list[Finding]:
    """Whether far fewer rows differ than among the reference's."""
    if distinct is None or not reference_distinct or rows < MIN_ROWS:
        return []
    expected = expected_distinct(rows, reference_rows, reference_distinct)
    missing = expected - distinct
    z, halvings = missing / math.sqrt(max(expected, 1.0)), math.log2(max(expected / max(distinct, 1), 1e-9))
    strength = finding_strength(z, 3.0, halvings, 1.0) if missing > 0 else 0.0
    text = f"{rows:,} rows, of which only {distinct:,} differ"
    return [Finding(kind="copies", strength=strength, text=text)] if strength >= 1 else []
