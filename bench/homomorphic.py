"""Homomorphic aggregation of a million parameters: time of each party's part, and bytes on the wire.

Baseline: the plain update's bytes, and adding it up in the clear.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from bench.table import Row
from winnow.privacy import ckks
from winnow.privacy.homomorphic import encrypted_sum

PARAMETERS = 1_000_000
CLIENTS = 4

T = TypeVar("T")


def measure() -> list[Row]:
    making, secret = _seconds(encrypted_sum.make_keys)
    key = ckks.public_part(secret, to_compute=False)
    public, total = ckks.read_context(key), encrypted_sum.EncryptedSum(key, PARAMETERS)
    updates = [np.random.default_rng(k).normal(0, 0.01, PARAMETERS) for k in range(CLIENTS)]
    plainly, expected = _seconds(lambda: np.sum(updates, axis=0))
    encrypting = adding = size = 0.0
    for update in updates:
        spent, parts = _seconds(
            lambda update=update: encrypted_sum.encrypt(public, encrypted_sum.round_to_steps(update, CLIENTS))
        )
        encrypting += spent / CLIENTS
        size = sum(part.nbytes for part in parts.values())
        adding += _seconds(lambda parts=parts: total.add(parts))[0] / CLIENTS
    opening, steps = _seconds(lambda: encrypted_sum.decrypt(secret, total.parts(), PARAMETERS))
    error = float(np.abs(steps * encrypted_sum.STEP - expected).max())
    plain = plainly / CLIENTS
    return [
        Row(name="make a key, the holder, once a round", value=1e3 * making, unit="ms", baseline=1e3 * making),
        Row(name="encrypt, each client", value=encrypting, unit="s", baseline=plain),
        Row(name="add one client's, server", value=adding, unit="s", baseline=plain),
        Row(name="open the sum, the holder", value=opening, unit="s", baseline=plain),
        Row(name="ciphertexts of an update", value=size / 1e6, unit="MB", baseline=4 * PARAMETERS / 1e6),
        Row(name="public key, to each client", value=key.nbytes / 1e3, unit="kB", baseline=key.nbytes / 1e3),
        Row(
            name=f"error of a sum of {CLIENTS}, largest",
            value=error * 1e7,
            unit="1e-7",
            baseline=CLIENTS * encrypted_sum.STEP / 2 * 1e7,
            goal="no more than rounding explains",
        ),
    ]


def _seconds(once: Callable[[], T]) -> tuple[float, T]:
    """Time of the processor, which does one thing at a time here, and the result."""
    start = time.process_time()
    result = once()
    return time.process_time() - start, result
