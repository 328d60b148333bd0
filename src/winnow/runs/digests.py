"""Digests of the files beside a checkpoint, so that a flipped bit is noticed before anybody builds on it.

The event log is hashed block by block as it is appended: that costs next to nothing, and says where it is damaged.
"""

from hashlib import blake2b
from pathlib import Path

BLOCK = 1 << 16
DIGEST_BYTES = 8
"""Enough against accidents. Whoever can write the folder can write a checkpoint, too."""


def digest_of(data: bytes) -> str:
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


class LogDigest:
    """The digests of a log's blocks, the last of which may still grow."""

    def __init__(self) -> None:
        self._whole: list[str] = []
        self._last, self._room = blake2b(digest_size=DIGEST_BYTES), BLOCK

    def update(self, data: bytes) -> None:
        while data:
            piece, data = data[: self._room], data[self._room :]
            self._last.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._whole.append(self._last.hexdigest())
                self._last, self._room = blake2b(digest_size=DIGEST_BYTES), BLOCK

    def blocks(self) -> list[str]:
        return self._whole if self._room == BLOCK else [*self._whole, self._last.hexdigest()]

    @classmethod
    def of(cls, path: Path, length: int) -> "LogDigest":
        """Of the beginning of a file."""
        digest = cls()
        if length:
            with path.open("rb") as file:
                while length and (data := file.read(min(length, 1 << 20))):
                    digest.update(data)
                    length -= len(data)
        return digest
