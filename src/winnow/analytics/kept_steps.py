"""What an owner keeps between the steps of a question."""

from collections.abc import Sequence

import msgspec
import numpy as np

from winnow.core import Payload
from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.shares.errors import SharesError


class KeptState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What an owner keeps after a step: the terms on which it answers, and what was opened."""

    statements: str
    opened: list[bytes]
    matched: list[str] = []
    """What a set intersection found, by which later steps align rows."""
    private: bytes = b""
    """What a protocol left to this owner alone."""


def kept_state(statements: str, opened: list[bytes], matched: Sequence[str] = (), private: bytes = b"") -> Payload:
    """What an owner keeps after a step."""
    kept = msgspec.msgpack.encode(
        KeptState(statements=statements, opened=opened, matched=list(matched), private=private)
    )
    return {"analysis": {"kept": np.frombuffer(kept, np.uint8)}}


def read_kept(state: Payload) -> KeptState | None:
    if "analysis" not in state:
        return None
    try:
        return from_msgpack(np.asarray(state["analysis"]["kept"]).tobytes(), KeptState)
    except UnreadableError as error:
        raise SharesError("what this owner kept of earlier steps cannot be read") from error
