"""What the server asks of a mask keeper elsewhere, as bytes: through a pipe, or in tasks of a federation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from winnow.privacy.secure.group import Space
from winnow.privacy.secure.keeper import Deposit, KeeperKey, MaskKeeper
from winnow.privacy.secure.terms import Terms, read, write


class AskKey(Struct, tag=True, frozen=True):
    """For the key that the seeds of a session are sealed to."""

    terms: Terms


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


Question: TypeAlias = AskKey | AskDeposit | AskTotal | AskHistograms


def answer(keeper: MaskKeeper, asked: bytes) -> bytes:
    """What the keeper says to a question; it may refuse to."""
    question: Question = read(asked, Question)  # type: ignore[arg-type]
    match question:
        case AskDeposit():
            keeper.deposit(question.terms, question.deposit)
            return b""
        case AskHistograms():
            return keeper.histograms(question.terms, question.masked, question.space, question.indexed)
        case AskTotal():
            return keeper.total(question.terms, question.survivors, question.space)
        case _:
            return write(keeper.key(question.terms))


class AskedKeeper(ABC):
    """A `Keeper` that is somewhere else."""

    @abstractmethod
    def ask(self, question: bytes) -> bytes:
        """Carry a question there and what is said back. Raises RefusedError where the keeper does not say."""

    def key(self, terms: Terms) -> KeeperKey:
        return read(self.ask(write(AskKey(terms))), KeeperKey)

    def deposit(self, terms: Terms, deposit: Deposit) -> None:
        self.ask(write(AskDeposit(terms, deposit)))

    def total(self, terms: Terms, survivors: Sequence[int], space: Space) -> bytes:
        return self.ask(write(AskTotal(terms, [*survivors], space)))

    def histograms(self, terms: Terms, masked: Mapping[int, bytes], space: Space, indexed: int) -> bytes:
        return self.ask(write(AskHistograms(terms, {**masked}, space, indexed)))
