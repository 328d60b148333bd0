"""Profile matching under encryption, one client: time of each party's part, and bytes on the wire.

Baseline: the same profile compared in the clear, and its bytes; what is done once is its own.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from bench.table import Row
from winnow.learn.representation_profile import Profile, divergence
from winnow.privacy import ckks
from winnow.privacy.encrypted_profile import compare_encrypted, read_profile, seal_profile

WIDTHS = (128, 1024)
REPEAT = 15

T = TypeVar("T")


def measure() -> list[Row]:
    making, secret = _milliseconds(ckks.make_keys, repeat=3)
    to_encrypt, to_compute = (ckks.public_part(secret, to_compute=yes) for yes in (False, True))
    once = {
        "make keys, once a run": (making, "ms"),
        "key to encrypt with, once a client": (to_encrypt.nbytes / 1e3, "kB"),
        "keys to compute with, once a run": (to_compute.nbytes / 1e3, "kB"),
    }
    return [
        *(row for q in WIDTHS for row in _matching(q, secret, to_encrypt, to_compute)),
        *(Row(name=name, value=value, unit=unit, baseline=value) for name, (value, unit) in once.items()),
    ]


def _matching(q: int, secret: ckks.Context, to_encrypt: ckks.Bytes, to_compute: ckks.Bytes) -> list[Row]:
    client, server = ckks.read_context(to_encrypt), ckks.read_context(to_compute)
    rng = np.random.default_rng(q)
    one, reference = (
        Profile(mean=rng.normal(0, 1, q).astype(np.float32), variance=rng.uniform(0.5, 2, q).astype(np.float32))
        for _ in range(2)
    )
    plain, (expected,) = _milliseconds(lambda: divergence([one], reference))
    sealing, sealed = _milliseconds(lambda: seal_profile(one, client))
    held = read_profile(seal_profile(reference, client), (q,), server)
    matching, compared = _milliseconds(lambda: compare_encrypted(read_profile(sealed, (q,), server), held))
    opening, value = _milliseconds(lambda: ckks.decrypt(secret, compared.ciphertext))
    error = abs(value / compared.factor / expected - 1)
    weight = sum(array.nbytes for array in sealed.values())
    return [
        Row(name=f"q = {q}: in the clear", value=plain, unit="ms", baseline=plain),
        Row(name="  encrypt, at the client", value=sealing, unit="ms", baseline=plain),
        Row(name="  match, at the server", value=matching, unit="ms", baseline=plain),
        Row(name="  decrypt, at the holder", value=opening, unit="ms", baseline=plain),
        Row(name="  sealed profile", value=weight / 1e3, unit="kB", baseline=one.nbytes / 1e3),
        Row(name="  encrypted divergence", value=compared.ciphertext.nbytes / 1e3, unit="kB", baseline=8 / 1e3),
        Row(name="  relative error", value=error * 1e9, unit="1e-9", baseline=1e5, goal="< 1e-4"),
    ]


def _milliseconds(once: Callable[[], T], repeat: int = REPEAT) -> tuple[float, T]:
    """The median of several times of the processor, which does one thing at a time here, and the last result."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        result = once()
        times.append(1e3 * (time.process_time() - start))
    return float(np.median(times)), result
