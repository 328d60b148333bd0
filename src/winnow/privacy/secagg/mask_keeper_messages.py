"""What the server asks of a mask keeper elsewhere, as bytes: through a pipe, or in tasks of a federation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from winnow.privacy.secagg.mask_keeper import KeeperKey, MaskKeeper, SeedDeposit
from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.session_terms import SessionTerms, read, write


class KeyRequest(Struct, tag=True, frozen=True):
    """For the key that the seeds of a session are sealed to."""

    terms: SessionTerms


class DepositRequest(Struct, tag=True, frozen=True):
    """To take a seed."""

    terms: SessionTerms
    deposit: SeedDeposit


class MaskSumRequest(Struct, tag=True, frozen=True):
    """For the sum of these clients' masks."""

    terms: SessionTerms
    survivors: list[int]
    space: VectorGroup


class HistogramRequest(Struct, tag=True, frozen=True):
    """For how often these clients chose which codeword."""

    terms: SessionTerms
    masked: dict[int, bytes]
    space: VectorGroup
    indexed: int


KeeperRequest: TypeAlias = KeyRequest | DepositRequest | MaskSumRequest | HistogramRequest


def answer_keeper_request(keeper: MaskKeeper, asked: bytes) -> bytes:
    """What the keeper says to a question; it may refuse to."""
    question: KeeperRequest = read(asked, KeeperRequest)  # type: ignore[arg-type]
    match question:
        case DepositRequest():
            keeper.deposit(question.terms, question.deposit)
            return b""
        case HistogramRequest():
            return keeper.histograms(question.terms, question.masked, question.space, question.indexed)
        case MaskSumRequest():
            return keeper.total(question.terms, question.survivors, question.space)
        case _:
            return write(keeper.key(question.terms))


class RemoteKeeper(ABC):
    """A `Keeper` that is somewhere else."""

    @abstractmethod
    def ask(self, question: bytes) -> bytes:
        """Carry a question there and what is said back. Raises RefusedError where the keeper does not say."""

    def key(self, terms: SessionTerms) -> KeeperKey:
        return read(self.ask(write(KeyRequest(terms))), KeeperKey)

    def deposit(self, terms: SessionTerms, deposit: SeedDeposit) -> None:
        self.ask(write(DepositRequest(terms, deposit)))

    def total(self, terms: SessionTerms, survivors: Sequence[int], space: VectorGroup) -> bytes:
        return self.ask(write(MaskSumRequest(terms, [*survivors], space)))

    def histograms(self, terms: SessionTerms, masked: Mapping[int, bytes], space: VectorGroup, indexed: int) -> bytes:
        return self.ask(write(HistogramRequest(terms, {**masked}, space, indexed)))
