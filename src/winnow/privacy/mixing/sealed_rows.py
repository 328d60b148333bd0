"""Rows in boxes for a reader: all of one length, and as many from every owner, some of them empty."""

from collections.abc import Sequence

from winnow.privacy.mixing.sealed_boxes import OVERHEAD, open_box, seal_box
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KeyPair
from winnow.privacy.shares.errors import SharesError

ROW, EMPTY = b"\1", b"\0"
"""Before the text of a box."""


def box_bytes(size: int) -> int:
    """Of a box with a text of so many bytes."""
    return len(ROW) + size + OVERHEAD


def sealed_rows(rows: Sequence[bytes], slots: int, size: int, reader: bytes) -> list[bytes]:
    """An owner's rows, filled up to `slots`, each sealed for the reader."""
    if len(rows) > slots or any(len(row) > size for row in rows):
        raise SharesError("this owner's rows do not fit the mix")
    texts = [ROW + row.ljust(size, b"\0") for row in rows] + [EMPTY + bytes(size)] * (slots - len(rows))
    try:
        return [seal_box(reader, text, b"") for text in texts]
    except ProtocolError as error:
        raise SharesError("the question has no valid key for which rows could be sealed") from error


def open_row(reader: KeyPair, box: bytes) -> bytes | None:
    """What the reader finds in a box; None in an empty one. ProtocolError if it is not for this reader."""
    text = open_box(reader, box, b"")
    if text[:1] not in (ROW, EMPTY):
        raise ProtocolError("a box that holds neither a row nor nothing")
    return text[1:].rstrip(b"\0") if text[:1] == ROW else None
