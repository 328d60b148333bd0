"""The parties of a job as a worker knows them: its agent signs for it, and gives it the keys to check others by."""

from typing import Any

from winnow.core import ConfigError
from winnow.deploy.jobs.client_statement_signatures import KEEPER_NUMBER, statement_bytes, verify_statement
from winnow.deploy.jobs.ipc_messages import (
    ReleaseNoteRequest,
    ReleaseNoteResponse,
    ReleaseRequest,
    ReleaseResponse,
    RunTask,
    SignRequest,
    SignResponse,
    SitePublicKey,
    SpendRequest,
    SpendResponse,
)
from winnow.deploy.jobs.parent_channel import ParentChannel
from winnow.learn.party_signing_interface import UPDATE
from winnow.privacy.secagg.errors import ProtocolError


class AgentIdentities:
    """`PartyIdentities` by the certificates of sites. All that is signed belongs to the round of the present task."""

    def __init__(self, parent: ParentChannel[Any], submission: str, keeper: str | None = None) -> None:
        """`keeper` is the site that acts as mask keeper, if one does."""
        self._parent, self._submission, self._keeper = parent, submission, keeper
        self._round = 0
        self._site_keys: list[SitePublicKey] = []

    def set_task(self, run: RunTask) -> None:
        self._round, self._site_keys = run.task.round, run.site_keys

    def sign(self, party: int, message: bytes) -> bytes:
        return self.sign_once(party, message, b"")

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        self._parent.send(SignRequest(client=party, content=message, ballot=ballot))
        answer = self._parent.receive(SignResponse)
        assert answer is not None
        if answer.refused:
            raise ProtocolError(answer.refused)
        return answer.signature

    def verify(self, party: int, message: bytes, signature: bytes) -> bool:
        statement = statement_bytes(self._submission, self._round, party, message)
        return any(
            verify_statement(each.key, signature, statement) for each in self._site_keys if self._hosts(each, party)
        )

    def name(self, party: int) -> str:
        """The site and the client's index there. The server assigns numbers, and could tell one site that a client is
        at another site than it tells a third.
        """
        site = self._site(party)
        return f"{site.site} {party - site.first_client}"

    def site(self, party: int) -> str:
        """The site that a client is at, by its certificate."""
        return self._site(party).site

    def _site(self, party: int) -> SitePublicKey:
        for each in self._site_keys:
            if self._hosts(each, party):
                return each
        raise ProtocolError(f"client {party} belongs to no site of this job with a valid certificate")

    def release(self, party: int, round: int, what: str = UPDATE, note: bytes = b"", instead_of: bytes = b"") -> int:
        self._parent.send(ReleaseRequest(client=party, kind=what, note=note, instead_of=instead_of))
        answer = self._parent.receive(ReleaseResponse)
        return 0 if answer is None else answer.times

    def release_note(self, party: int, round: int) -> bytes:
        self._parent.send(ReleaseNoteRequest(client=party))
        answer = self._parent.receive(ReleaseNoteResponse)
        return b"" if answer is None else answer.note

    def book(self) -> None:
        """Have the agent book what the job's question costs; raises if it does not last."""
        self._parent.send(SpendRequest())
        answer = self._parent.receive(SpendResponse)
        assert answer is not None
        if answer.refused:
            raise ConfigError(answer.refused)

    def _hosts(self, site: SitePublicKey, party: int) -> bool:
        if party == KEEPER_NUMBER:
            return site.site == self._keeper
        return 0 <= party - site.first_client < site.client_count
