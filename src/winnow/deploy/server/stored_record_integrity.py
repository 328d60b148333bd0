"""Whether the stored records of a job are still those that were committed: no job continues from changed records.

Blobs are named by their digests. Every round has a digest of all that the job has told until then, chained line by line
from its configuration on, so that a commit hashes its own lines alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from winnow.core import WinnowError
from winnow.deploy.wire.messages import Blob


class DamagedRecordsError(WinnowError):
    """The stored records of a job are not those that were committed. Trying again does not help."""


def verified_chunks(chunks: Iterable[bytes], blob: Blob, what: str) -> Iterator[bytes]:
    """The chunks of a blob; raises after the last one if together they are not the blob."""
    digest = sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != blob.digest:
        raise DamagedRecordsError(
            f"{what} is damaged: blob {blob.digest[:12]} is not what was stored; "
            "restore the server's state from a backup, or submit the job again"
        )


def first_digest(config: str) -> str:
    return sha256(config.encode()).hexdigest()


def next_digest(digest: str, line: str) -> str:
    return sha256(f"{digest}\n{line}".encode()).hexdigest()


class EventDigestCheck:
    """Reads a job's event lines and finds the first round whose lines differ from those committed."""

    def __init__(self, job: str, config: str, rounds: Sequence[tuple[int, str | None]]) -> None:
        """`rounds` and their digests, in order; None where an earlier version committed it."""
        self._job, self._digest = job, first_digest(config)
        self._expected = [(number, digest) for number, digest in rounds if digest is not None][::-1]

    def add_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._pass()
            self._digest = next_digest(self._digest, line)

    def finish(self) -> None:
        self._pass()
        if self._expected:
            number, _ = self._expected[-1]
            raise DamagedRecordsError(
                f"the event lines of job {self._job} in the database differ from those committed with round {number}; "
                "restore the database from a backup, or submit the job again"
            )

    def _pass(self) -> None:
        """Rounds that end here; one may have no events."""
        while self._expected and self._expected[-1][1] == self._digest:
            self._expected.pop()
