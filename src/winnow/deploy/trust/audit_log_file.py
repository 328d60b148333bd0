"""A chain in a file of JSON lines, its head in a small file beside it.

A line is durable before the head that covers it is put in place. So a process killed at any moment leaves at most one
entry after the head, or one torn line. Anybody who can write the file could have left either: the entry is adopted and
the torn line set aside, and the next entry says so.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec

from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.audit_chain import ADOPTED, MAX_UNSIGNED_ENTRIES, AuditEntry, ChainHead
from winnow.deploy.trust.audit_log import REMEDY, AuditLog, MakeEntry
from winnow.deploy.trust.errors import AuditError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.private_file_writing import PRIVATE, read_small, sync_folder, write_bytes_atomically

AUDIT_FILE = "audit.jsonl"
BLOCK = 1 << 16


class AuditTail(NamedTuple):
    """How a log ends: maybe with a line that was torn and is set aside, or with an entry that nobody signed."""

    torn: bytes
    unsigned: bool
    last: AuditEntry | None
    head: ChainHead | None


class FileAuditStore:
    """A log that one process extends, once it has claimed it; everybody may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn_path = path.with_name(path.name + ".torn")
        self._head_path = path.with_name(path.name + ".head")
        self._lock = Lock()
        self._descriptor: int | None = None
        self._last: AuditEntry | None = None
        self._head: ChainHead | None = None

    def claim(self) -> AuditTail:
        """Claim the log for this process, and find out how it ends."""
        with self._lock:
            self._descriptor = _claimed(self.path)
            try:
                sync_folder(self.path.parent)
                torn, self._head = self._set_torn_aside(), self.head()
                self._drop_unsigned_mark()
                self._last = next(reversed(_last_entries(self.path)), None)
                unsigned = self._is_past_its_head()
            except AuditError:
                self._release()
                raise
            return AuditTail(torn, unsigned, self._last, self._head)

    def extend(self, make: MakeEntry, sign_head: Callable[[AuditEntry], ChainHead]) -> AuditEntry:
        with self._lock:
            if self._descriptor is None:
                raise AuditError(f"the audit log {self.path} is not open for writing")
            entry = make(self._last, self._head)
            head = sign_head(entry)
            self._write(entry.line() + b"\n", head)
            self._last, self._head = entry, head
            return entry

    def lines(self) -> Iterator[bytes]:
        """Each without its last byte: of a whole line that is its end, and a torn one stays no entry."""
        with self.path.open("rb") as file:
            yield from (line[:-1] for line in file)

    def head(self) -> ChainHead | None:
        if not self._head_path.exists():
            return None
        try:
            return from_json(read_small(self._head_path), ChainHead)
        except UnreadableError as error:
            raise AuditError(f"{self._head_path} is damaged: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._release()

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _put_head(self, head: ChainHead) -> None:
        write_bytes_atomically(self._head_path, msgspec.json.encode(head), PRIVATE)

    def _write(self, line: bytes, head: ChainHead) -> None:
        """The line, then its head; both or neither: what a full disk cut short is taken back."""
        assert self._descriptor is not None
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(None, "the disk is full")
            os.fsync(self._descriptor)
            self._put_head(head)
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise AuditError(f"cannot write the audit log {self.path}: {error.strerror}") from error

    def _set_torn_aside(self) -> bytes:
        end = _end_of_lines(self.path)
        with self.path.open("rb") as file:
            file.seek(end)
            torn = file.read()
        if torn:
            aside = os.open(self.torn_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            with os.fdopen(aside, "ab") as file:
                file.write(torn + b"\n")
                file.flush()
                os.fsync(aside)
            self._cut(end)
        return torn

    def _cut(self, end: int) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, end)
        os.fsync(self._descriptor)

    def _drop_unsigned_mark(self) -> None:
        """An owner that was killed while it adopted an entry does so anew."""
        last = _last_entries(self.path)
        covered = self._head.seq if self._head else 0
        if len(last) == 2 and last[1].what == ADOPTED and last[1].seq == covered + MAX_UNSIGNED_ENTRIES + 1:
            self._cut(self.path.stat().st_size - len(last[1].line()) - 1)

    def _is_past_its_head(self) -> bool:
        """Whether a killed process left an entry without a head; any other difference is refused."""
        reached, covered = self._last.seq if self._last else 0, self._head.seq if self._head else 0
        if not covered <= reached <= covered + MAX_UNSIGNED_ENTRIES:
            raise AuditError(
                f"the audit log {self.path} ends at entry {reached}, but its signed head covers {covered}; {REMEDY}"
            )
        return reached > covered

    def __str__(self) -> str:
        return f"the audit log {self.path}"


def open_audit_log(path: Path, kit: Kit) -> AuditLog:
    """The log in this file, to be written by this process. What is found at its end and was not signed is marked."""
    store = FileAuditStore(path)
    log = AuditLog(store, kit)
    torn, unsigned, last, head = store.claim()
    try:
        if unsigned:
            log.adopt_unsigned_entry()
        else:
            log.check(last, head)
    except AuditError:
        log.close()
        raise
    if torn:
        log.note("audit recovered", f"torn line of {len(torn)} bytes", f"set aside, sha256 {sha256(torn).hexdigest()}")
    return log


def _claimed(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AuditError(f"the audit log {path} is in use by another process") from None
    return descriptor


def _end_of_lines(path: Path) -> int:
    """Where the last complete line ends."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def _last_entries(path: Path) -> list[AuditEntry]:
    """The last two, or as many as there are, read from the end: a log may be long."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and tail.count(b"\n") < 3:
            start = max(0, end - BLOCK)
            file.seek(start)
            tail, end = file.read(end - start) + tail, start
    found = []
    for line in tail.split(b"\n")[:-1][-2:]:
        if (entry := AuditEntry.parse(line)) is None:
            raise AuditError(f"the audit log {path} has an invalid entry near its end; {REMEDY}")
        found.append(entry)
    return found
