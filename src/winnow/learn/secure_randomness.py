"""Chance that nobody can foresee, for deployments: numbers out of the keystream of a cipher.

numpy's own generators are no ciphers: who sees enough of what they have drawn can tell what they will draw, and so take
noise off. `secure_generator` gives a `numpy.random.Generator` whose bits are AES-256 in counter mode, under a key that
comes from the operating system and is used for that generator alone.
"""

import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from math import log1p, pi
from threading import Lock
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

KEY_BYTES, BLOCK_BYTES, WORD_BYTES = 32, 16, 8
BUFFERED_WORDS = 512
"""So many words are made when a single one is asked for, and there is none left."""


def secure_generator(key: bytes | None = None) -> np.random.Generator:
    """A generator whose numbers nobody can foresee, nor tell from those that it has drawn. The same `key`, which is
    secret and used for nothing else, gives the same numbers again.
    """
    return _SecureGenerator(_Keystream(os.urandom(KEY_BYTES) if key is None else key))


def secure_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A deployment's `Randomness`: a new generator each time, so that nobody who knows the seed can take noise off."""
    return secure_generator()


class _Keystream:
    """The bits, in the form in which numpy takes them: a capsule around five C functions (numpy's `bitgen_t`)."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES(key), CTR(bytes(BLOCK_BYTES))).encryptor()
        self._left: list[int] = []
        self.lock = Lock()
        word, half = _Word(self._next), _Half(lambda _: self._next(_) >> 32)
        share = _Share(lambda _: (self._next(_) >> 11) * 2.0**-53)
        self._functions = _Functions(None, word, half, share, word)
        address = cast(POINTER(_Functions)(self._functions), c_void_p)
        self.capsule = _new_capsule(address, CAPSULE_NAME, None)

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many words of 64 bits."""
        return np.frombuffer(self._cipher.update(bytes(WORD_BYTES * count)), np.uint64)

    def _next(self, state: object) -> int:
        if not self._left:
            self._left = self.words(BUFFERED_WORDS).tolist()
        return self._left.pop()


class _SecureGenerator(np.random.Generator):
    """All that numpy draws, from a keystream. numpy asks for words one by one, which is slow where they come from
    Python; so the draws that noise is made of are written anew, for whole arrays.
    """

    def __init__(self, keystream: _Keystream) -> None:
        super().__init__(keystream)  # type: ignore[arg-type]  # numpy takes whatever has a capsule and a lock
        self._keystream = keystream

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        if size is None or out is not None:
            return super().random(size, dtype, out)
        return self._shares(size).astype(dtype) if np.dtype(dtype) == np.float64 else self._coarse_shares(size)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """By Box and Muller's method."""
        if size is None:
            return super().normal(loc, scale)
        count = int(np.prod(size))
        drawn = np.empty((2, (count + 1) // 2))
        radius = np.sqrt(-2 * np.log(1 - self._shares(drawn.shape[1])))
        angle = 2 * pi * self._shares(drawn.shape[1])
        np.multiply(radius, np.cos(angle), out=drawn[0])
        np.multiply(radius, np.sin(angle), out=drawn[1])
        return loc + scale * drawn.reshape(-1)[:count].reshape(size)

    def laplace(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        if size is None:
            return super().laplace(loc, scale)
        size_of_each = -np.log1p(-self._shares(size))
        return loc + scale * np.where(self._shares(size) < 0.5, size_of_each, -size_of_each)

    def geometric(self, p: Any, size: Any = None) -> Any:
        if size is None or np.ndim(p):
            return super().geometric(p, size)
        return np.maximum(1, np.ceil(np.log1p(-self._shares(size)) / log1p(-p))).astype(np.int64)

    def permutation(self, x: Any, axis: int = 0) -> Any:
        return np.argsort(self._keystream.words(x)) if isinstance(x, int) else super().permutation(x, axis)

    def _shares(self, size: Any) -> NDArray[np.float64]:
        """Numbers from 0 up to but not 1, in steps of 2⁻⁵³."""
        words = self._keystream.words(int(np.prod(size)))
        return ((words >> np.uint64(11)) * 2.0**-53).reshape(size)

    def _coarse_shares(self, size: Any) -> NDArray[np.float32]:
        """The same in steps of 2⁻²⁴."""
        words = self._keystream.words(int(np.prod(size)))
        return ((words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(size)


CAPSULE_NAME = b"BitGenerator"
_Word, _Half, _Share = CFUNCTYPE(c_uint64, c_void_p), CFUNCTYPE(c_uint32, c_void_p), CFUNCTYPE(c_double, c_void_p)
_new_capsule = pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]


class _Functions(Structure):
    """numpy's `bitgen_t`."""

    _fields_ = (
        ("state", c_void_p),
        ("next_uint64", _Word),
        ("next_uint32", _Half),
        ("next_double", _Share),
        ("next_raw", _Word),
    )
