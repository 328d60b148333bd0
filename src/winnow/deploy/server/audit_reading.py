"""Pages of the server's audit log, for people whom the policy lets read it."""

from collections.abc import Callable
from itertools import islice
from typing import TypeAlias

import msgspec

from winnow.deploy.trust.audit_log import AuditLog
from winnow.deploy.wire.message_codec import MAX_MESSAGE
from winnow.deploy.wire.messages import AuditPage

PAGE_BYTES = MAX_MESSAGE // 4
LINE_OVERHEAD = 8
"""Bytes of a message around a line."""

AuditReading: TypeAlias = Callable[[int], AuditPage]
"""The entries after so many; blocking."""


def audit_page(log: AuditLog, after: int) -> AuditPage:
    """The entries after so many, no further than the head that stands beside them."""
    head = log.head()
    lines, room = list[bytes](), PAGE_BYTES
    for line in islice(log.lines(), after, max(after, 0 if head is None else head.seq)):
        room -= len(line) + LINE_OVERHEAD
        if room < 0 and lines:
            break
        lines.append(line)
    return AuditPage(lines=lines, head=b"" if head is None else msgspec.json.encode(head))
