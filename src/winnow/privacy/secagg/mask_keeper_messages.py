"""Requests of the server to a mask keeper in another process or at a site, as bytes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.session_terms import SessionTerms, read_message, write_message
from winnow.privacy.secagg.third_party_mask_keeper import KeeperKey, MaskKeeper, SeedDeposit


class KeyRequest(Struct, tag=True, frozen=True):
    """Asks for the key that the seeds of a session are sealed to."""

    terms: SessionTerms


class DepositRequest(Struct, tag=True, frozen=True):
    """Delivers a client's sealed seed."""

    terms: SessionTerms
    deposit: SeedDeposit


class MaskSumRequest(Struct, tag=True, frozen=True):
    """Asks for the sum of these clients' masks."""

    terms: SessionTerms
    survivors: list[int]
    group: VectorGroup


class HistogramRequest(Struct, tag=True, frozen=True):
    """Asks how often each codeword was chosen by these clients."""

    terms: SessionTerms
    masked: dict[int, bytes]
    group: VectorGroup
    indexed: int


KeeperRequest: TypeAlias = KeyRequest | DepositRequest | MaskSumRequest | HistogramRequest


def answer_keeper_request(keeper: MaskKeeper, request: bytes) -> bytes:
    """The keeper's response to a request. Raises ProtocolError where it refuses."""
    message: KeeperRequest = read_message(request, KeeperRequest)  # type: ignore[arg-type]
    match message:
        case DepositRequest():
            keeper.deposit(message.terms, message.deposit)
            return b""
        case HistogramRequest():
            return keeper.histograms(message.terms, message.masked, message.group, message.indexed)
        case MaskSumRequest():
            return keeper.total(message.terms, message.survivors, message.group)
        case _:
            return write_message(keeper.key(message.terms))


class RemoteKeeper(ABC):
    """A mask keeper in another process or at a site."""

    @abstractmethod
    def ask(self, request: bytes) -> bytes:
        """Send a request and return the response. Raises ProtocolError where the keeper refuses."""

    def key(self, terms: SessionTerms) -> KeeperKey:
        return read_message(self.ask(write_message(KeyRequest(terms))), KeeperKey)

    def deposit(self, terms: SessionTerms, deposit: SeedDeposit) -> None:
        self.ask(write_message(DepositRequest(terms, deposit)))

    def total(self, terms: SessionTerms, survivors: Sequence[int], group: VectorGroup) -> bytes:
        return self.ask(write_message(MaskSumRequest(terms, [*survivors], group)))

    def histograms(self, terms: SessionTerms, masked: Mapping[int, bytes], group: VectorGroup, indexed: int) -> bytes:
        return self.ask(write_message(HistogramRequest(terms, {**masked}, group, indexed)))
