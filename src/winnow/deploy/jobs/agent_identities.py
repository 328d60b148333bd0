"""The parties of a job as a worker knows them: it has its agent sign, and checks the others by keys from its agent."""

from typing import Any

from winnow.deploy.jobs.ipc import (
    ReleaseNoteRequest,
    ReleaseNoteResponse,
    ReleaseRequest,
    ReleaseResponse,
    RunTask,
    SignRequest,
    SignResponse,
    SitePublicKey,
)
from winnow.deploy.jobs.parent_channel import ParentChannel
from winnow.deploy.jobs.signed_statements import KEEPER_NUMBER, statement_bytes, verify_statement
from winnow.learn.party_identities import UPDATE
from winnow.privacy.secagg.errors import ProtocolError


class AgentIdentities:
    """`Identities` by the certificates of sites. All that is said belongs to the round of the order under way."""

    def __init__(self, line: ParentChannel[Any], submission: str, keeper: str | None = None) -> None:
        """`keeper` is the site that keeps the masks' seeds, if one does."""
        self._line, self._submission, self._keeper = line, submission, keeper
        self._round = 0
        self._parties: list[SitePublicKey] = []

    def attend(self, order: RunTask) -> None:
        self._round, self._parties = order.task.round, order.parties

    def sign(self, party: int, message: bytes) -> bytes:
        return self.sign_once(party, message, b"")

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        self._line.send(SignRequest(client=party, content=message, ballot=ballot))
        answer = self._line.receive(SignResponse)
        assert answer is not None
        if answer.refused:
            raise ProtocolError(answer.refused)
        return answer.signature

    def verify(self, party: int, message: bytes, signature: bytes) -> bool:
        said = statement_bytes(self._submission, self._round, party, message)
        return any(
            verify_statement(each.key, signature, said) for each in self._parties if self._speaks_for(each, party)
        )

    def name(self, party: int) -> str:
        """The site and the client's place there. Numbers are the server's word, and it could give a site's number to
        another site when it talks to a third.
        """
        for each in self._parties:
            if self._speaks_for(each, party):
                return f"{each.site} {party - each.clients_from}"
        raise ProtocolError(f"client {party} is at no site of this job whose certificate counts")

    def release(self, party: int, round: int, what: str = UPDATE, note: bytes = b"", instead_of: bytes = b"") -> int:
        self._line.send(ReleaseRequest(client=party, what=what, note=note, instead_of=instead_of))
        answer = self._line.receive(ReleaseResponse)
        return 0 if answer is None else answer.times

    def release_note(self, party: int, round: int) -> bytes:
        self._line.send(ReleaseNoteRequest(client=party))
        answer = self._line.receive(ReleaseNoteResponse)
        return b"" if answer is None else answer.note

    def _speaks_for(self, site: SitePublicKey, party: int) -> bool:
        if party == KEEPER_NUMBER:
            return site.site == self._keeper
        return 0 <= party - site.clients_from < site.clients
