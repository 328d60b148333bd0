"""The mask keeper in a process of its own, asked through a pipe: the same interface, and no memory in common."""

from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self, TypeAlias

from msgspec import Struct

from waiting import PATIENCE
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.mask_keeper_messages import RemoteKeeper, answer_keeper_request
from winnow.privacy.secagg.session_terms import read_message, write_message
from winnow.privacy.secagg.third_party_mask_keeper import MaskKeeper

Line: TypeAlias = "Connection[Any, Any]"


class Answer(Struct, frozen=True):
    """What the keeper says: an answer, or why there is none."""

    response: bytes = b""
    refused: str | None = None


def serve(line: Line, other_end: Line, keeper: MaskKeeper) -> None:
    """Be the keeper until the other end of the line has gone; a forked process has that as well, and must not."""
    other_end.close()
    while True:
        try:
            request = line.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            answer = Answer(response=answer_keeper_request(keeper, request))
        except ProtocolError as error:
            answer = Answer(refused=str(error))
        line.send_bytes(write_message(answer))


class KeeperProcess(RemoteKeeper):
    """A keeper that was started beside this process, and ends with this context."""

    def __init__(
        self, identities: PartyIdentities, *, threshold: float, min_clients: int, max_weight_share: float
    ) -> None:
        forked = get_context("fork")
        self._line, theirs = forked.Pipe()
        keeper = MaskKeeper(identities, threshold=threshold, min_clients=min_clients, max_weight_share=max_weight_share)
        self._process = forked.Process(target=serve, args=(theirs, self._line, keeper), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: bytes) -> bytes:
        try:
            self._line.send_bytes(request)
            answer = read_message(self._line.recv_bytes(), Answer)
        except (EOFError, OSError) as error:
            raise ProtocolError("the mask keeper has gone") from error
        if answer.refused is not None:
            raise ProtocolError(answer.refused)
        return answer.response

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        self._process.join(timeout=PATIENCE)
        self._process.kill()
        self._process.join()
        self._process.close()
