"""Approximate arithmetic on encrypted vectors: CKKS (Cheon et al., 2017), by TenSEAL and Microsoft SEAL.

A *private* context holds the secret key. What leaves its owner are *public* contexts: one with the public key alone, to
encrypt with, and one that can also multiply and rotate, to compute with. Everything travels as arrays of bytes.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays, ConfigError
from winnow.core.array_spec import is_byte_array
from winnow.core.installed_package import install_command
from winnow.core.untrusted_text import error_line

Bytes: TypeAlias = NDArray[np.uint8]
Context: TypeAlias = Any
EncryptedVector: TypeAlias = Any

DEGREE = 8192
SLOTS = DEGREE // 2
"""Numbers that one ciphertext holds."""

PRIME_BITS = (40, 38, 44, 44, 52)
"""218 bits in all, the most that this degree allows at 128 bits of security. Two primes of 44 bits are spent on two
multiplications one after the other; the first two stay, and the last serves relinearisation and rotation only.
"""

SCALE = 2.0**44

CAPACITY = 2.0**30
"""Results up to this size cannot overflow: 78 bits stay after two multiplications, 44 of them behind the point."""

FRESH_PRIMES = len(PRIME_BITS) - 1
"""What a ciphertext has before anything was multiplied."""


MAX_CIPHERTEXT_BYTES = 1 << 21
MAX_KEY_BYTES = 1 << 27
"""No ciphertext and no keys are larger: what claims to be is not read."""


class CiphertextError(ValueError):
    """Bytes that are not what they should be, in one line."""


def make_keys() -> Context:
    """A private context with all its keys, from the operating system's randomness."""
    ts = library()
    context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(PRIME_BITS), n_threads=1)
    context.global_scale = SCALE
    context.generate_galois_keys()
    return context


def public_part(context: Context, *, to_compute: bool) -> Bytes:
    """The context without its secret key: to encrypt with, or also to compute with."""
    return as_array(
        context.serialize(
            save_public_key=True, save_secret_key=False, save_galois_keys=to_compute, save_relin_keys=to_compute
        )
    )


def read_context(data: Bytes) -> Context:
    """A public context. One with a secret key in it is refused: nobody else should have it."""
    content = as_bytes(data)
    try:
        context = library().context_from(content, n_threads=1)
    except Exception as error:  # whatever the library raises over a stranger's bytes
        raise CiphertextError(f"the keys cannot be read ({error_line(error)})") from error
    if context.has_secret_key():
        raise CiphertextError("the received keys include a secret key; send public keys only")
    return context


def encrypt(context: Context, values: NDArray[np.float64]) -> Bytes:
    """The values and zeros up to a whole ciphertext, encrypted."""
    return as_array(library().ckks_vector(context, _padded(values)).serialize())


def read_fresh(context: Context, data: Bytes, *, slots: int = SLOTS, primes: int = FRESH_PRIMES) -> EncryptedVector:
    """A ciphertext as encryption makes it, and as adding leaves it: full, and with all its levels."""
    vector = read(context, data)
    ciphertexts = vector.ciphertext()
    if len(ciphertexts) != 1 or vector.size() != slots:
        raise CiphertextError("it is not a single ciphertext with the expected number of slots")
    (ciphertext,) = ciphertexts
    if ciphertext.size() != 2 or ciphertext.is_transparent():
        raise CiphertextError("it is not a freshly encrypted ciphertext")
    if ciphertext.coeff_modulus_size() != primes or ciphertext.scale != SCALE:
        raise CiphertextError("it was encrypted with different CKKS parameters")
    return vector


def multiply_plain(vector: EncryptedVector, weights: NDArray[np.float64]) -> EncryptedVector:
    """Each element times a weight in the clear."""
    return vector * _padded(weights)


def squared_distance(one: EncryptedVector, other: EncryptedVector, more: float) -> Bytes:
    """Σ_i (one_i − other_i)² + more, as a new ciphertext.

    The sum runs over all slots in a circle, so every slot of the result holds the same number: whoever decrypts it
    learns the sum and no part of it.
    """
    difference = one - other
    difference.square_()
    difference.sum_()
    return as_array((difference + more).serialize())


def decrypt(context: Context, data: Bytes) -> float:
    """The number in a ciphertext that `squared_distance` made; takes a private context."""
    vector = read(context, data)
    if vector.size() != 1:
        raise CiphertextError("the decrypted result has more than one number; expected one")
    return float(vector.decrypt()[0])


def read(context: Context, data: Bytes) -> EncryptedVector:
    content = as_bytes(data)
    try:
        return library().ckks_vector_from(context, content)
    except Exception as error:  # whatever the library raises over a stranger's bytes
        raise CiphertextError(error_line(error)) from error


def _padded(values: NDArray[np.float64]) -> list[float]:
    padded: list[float] = np.pad(values, (0, SLOTS - len(values))).tolist()
    return padded


def as_array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def as_bytes(data: Bytes) -> bytes:
    return byte_array({"": data}, "", MAX_KEY_BYTES).tobytes()


def byte_array(arrays: Arrays, name: str, most: int = MAX_CIPHERTEXT_BYTES) -> Bytes:
    """An array of bytes that another party sent. What claims to be larger than it can be is not read."""
    if not is_byte_array(arrays, name, most):
        raise CiphertextError("it is not a byte array, or it is too large")
    return np.asarray(arrays[name])


def library(by: str = "encryption") -> Any:
    """TenSEAL itself, which not everybody needs."""
    try:
        import tenseal  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{by} needs an extra: {install_command('encryption')}") from error
    return tenseal
