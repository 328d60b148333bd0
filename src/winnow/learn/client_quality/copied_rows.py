"""How many rows of a client differ from one another: a few rows, copied, teach a model little."""

import math

import torch
from torch import Tensor

from winnow.learn.client_quality.findings import Finding, finding_strength

MIN_ROWS = 10
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
    """How many of so many rows differ, if they come from where the reference's do.

    N reference rows with D distinct ones are as a draw from U = N² / 2(N − D) equally frequent rows would be, at least
    N² / 2; of n draws, U(1 − exp(−n / U)) differ. Where frequencies are unequal, more do.
    """
    universe = reference_rows**2 / (2 * max(reference_rows - reference_distinct, 1))
    return -universe * math.expm1(-rows / universe)


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
