"""The mask keeper in a process of its own, asked through a pipe: the same interface, and no memory in common."""

from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self, TypeAlias

import msgspec
from msgspec import Struct

from winnow.privacy.secure.group import Space
from winnow.privacy.secure.identity import Identities
from winnow.privacy.secure.keeper import Deposit, KeeperKey, MaskKeeper
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.terms import Terms, read, write

Line: TypeAlias = "Connection[Any, Any]"


class AskKey(Struct, tag=True, frozen=True):
    """For the key that seeds are sealed to."""


class AskDeposit(Struct, tag=True, frozen=True):
    """To take a seed."""

    terms: Terms
    deposit: Deposit


class AskTotal(Struct, tag=True, frozen=True):
    """For the sum of these clients' masks."""

    terms: Terms
    survivors: list[int]
    space: Space


class AskHistograms(Struct, tag=True, frozen=True):
    """For how often these clients chose which codeword."""

    terms: Terms
    masked: dict[int, bytes]
    space: Space
    indexed: int


class Answer(Struct, frozen=True):
    """What the keeper says: an answer, or why there is none."""

    said: bytes = b""
    refused: str | None = None


def serve(line: Line, other_end: Line, keeper: MaskKeeper) -> None:
    """Be the keeper until the other end of the line has gone; a forked process has that as well, and must not."""
    other_end.close()
    while True:
        try:
            asked = line.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            answer = Answer(said=_answer(keeper, asked))
        except RefusedError as error:
            answer = Answer(refused=str(error))
        line.send_bytes(write(answer))


def _answer(keeper: MaskKeeper, asked: bytes) -> bytes:
    try:
        question = msgspec.msgpack.decode(asked, type=AskKey | AskDeposit | AskTotal | AskHistograms)
    except msgspec.MsgspecError as error:
        raise RefusedError(f"a message that cannot be read ({error})") from error
    match question:
        case AskDeposit():
            keeper.deposit(question.terms, question.deposit)
            return b""
        case AskHistograms():
            return keeper.histograms(question.terms, question.masked, question.space, question.indexed)
        case AskTotal():
            return keeper.total(question.terms, question.survivors, question.space)
        case _:
            return write(keeper.key())


class KeeperProcess:
    """A keeper that was started beside this process, and ends with this context."""

    def __init__(self, identities: Identities, *, threshold: float, fewest: int) -> None:
        forked = get_context("fork")
        self._line, theirs = forked.Pipe()
        keeper = MaskKeeper(identities, threshold=threshold, fewest=fewest)
        self._process = forked.Process(target=serve, args=(theirs, self._line, keeper), daemon=True)
        self._process.start()
        theirs.close()

    def key(self) -> KeeperKey:
        return read(self._ask(AskKey()), KeeperKey)

    def deposit(self, terms: Terms, deposit: Deposit) -> None:
        self._ask(AskDeposit(terms, deposit))

    def total(self, terms: Terms, survivors: Sequence[int], space: Space) -> bytes:
        return self._ask(AskTotal(terms, [*survivors], space))

    def histograms(self, terms: Terms, masked: Mapping[int, bytes], space: Space, indexed: int) -> bytes:
        return self._ask(AskHistograms(terms, {**masked}, space, indexed))

    def _ask(self, question: Struct) -> bytes:
        try:
            self._line.send_bytes(write(question))
            answer = read(self._line.recv_bytes(), Answer)
        except (EOFError, OSError) as error:
            raise RefusedError("the mask keeper has gone") from error
        if answer.refused is not None:
            raise RefusedError(answer.refused)
        return answer.said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()
        self._process.join(timeout=5)
