"""Signs for a site's clients in one job, and tells their process whose signatures are valid.

The job's process holds no key. What it has signed is bound to the job, the round and the client, so it is of no use
elsewhere; and certificates of other sites, which come from the server, are checked here.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from winnow.analytics.tasks import ANALYSIS_BEGIN
from winnow.core.errors import ConfigError
from winnow.deploy.jobs.client_statement_signatures import KEEPER_NUMBER, statement_bytes
from winnow.deploy.jobs.ipc_messages import (
    AgentRequest,
    AgentResponse,
    ReleaseNoteRequest,
    ReleaseNoteResponse,
    ReleaseRequest,
    ReleaseResponse,
    SignRequest,
    SignResponse,
    SitePublicKey,
    SpendRequest,
    SpendResponse,
)
from winnow.deploy.site.budget_records import QuestionBudget
from winnow.deploy.site.submission_records import SubmissionRecords
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import check_certificate, read_certificate, utc_now
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.signed_documents import ALGORITHM
from winnow.deploy.wire.messages import PeerSite

log = logging.getLogger(__name__)

MAX_STATEMENT_BYTES = 1 << 20


class SigningProxy:
    """Of one job, as its author submitted it."""

    def __init__(
        self,
        kit: Kit,
        records: SubmissionRecords,
        submission: str,
        *,
        job: str,
        allowed_sites: Sequence[str] = (),
        may_keep_masks: Callable[[], bool] = lambda: False,
        budget: Callable[[], QuestionBudget | None] = lambda: None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`allowed_sites` are the sites that the job's author named, if any; `may_keep_masks` says whether this site
        may act as mask keeper; `budget` is what the job's question costs, where the site's rule limits that.
        """
        self._kit, self._records, self._submission, self._job = kit, records, submission, job
        self._allowed_sites = frozenset(allowed_sites)
        self._may_keep_masks, self._budget, self._now = may_keep_masks, budget, now
        self._revoked = kit.watch_revocations()
        self._peer_sites: tuple[PeerSite, ...] = ()
        self._checked: tuple[int, int, list[SitePublicKey]] | None = None
        self._warned: set[tuple[str, str]] = set()
        self._numbering = records.numbering(submission)

    @property
    def peer_sites(self) -> Sequence[PeerSite]:
        """The sites of the job and their clients; empty if the server's list is not consistent."""
        return self._peer_sites

    @property
    def revocations(self) -> RevocationList:
        return self._revoked.current()

    def first_client_number(self, proposed: int | None) -> int | None:
        """The number of this site's first client: as it was fixed in this job, or else as the server proposes."""
        own = self._numbering.get(self._kit.name)
        if own is None:
            return proposed
        if proposed not in (None, own.start):
            raise ConfigError(
                f"the server numbers this site's clients from {proposed}, but this job started with {own.start}; "
                "submit the job again"
            )
        return own.start

    def fix_client_numbers(self, first: int | None, clients: int) -> None:
        """Fix the numbers of this site's own clients, once they are known.

        Releases are recorded by these numbers, and the job's process finds the data by the same ones: a server that
        could change either would get one client's noisy update as often as it liked.
        """
        first = self.first_client_number(first)
        if first is None:
            return
        self._fix({self._kit.name: range(first, first + clients)})
        if (before := len(self._own)) != clients:
            raise ConfigError(
                f"this site's data have {clients} clients, but had {before} when the job started; submit the job again"
            )

    def set_peer_sites(self, peer_sites: Sequence[PeerSite]) -> None:
        """The server's list of the job's sites. One that contradicts itself, or an earlier one, is ignored."""
        self._checked = None
        self._peer_sites = ()
        if inconsistency := self._inconsistency(peer_sites):
            log.warning("job %s: ignored the server's list of the job's sites: %s", self._job, inconsistency)
            return
        self._peer_sites = tuple(peer_sites)
        self._fix(_numbers(peer_sites))

    def site_public_keys(self, round: int) -> list[SitePublicKey]:
        """The sites with valid certificates; checked again for each round, and when certificates are revoked."""
        revocations = self.revocations
        if self._checked is None or self._checked[:2] != (round, revocations.number):
            found = [self._checked_key(each, revocations) for each in self._peer_sites]
            self._checked = (round, revocations.number, [each for each in found if each is not None])
        return self._checked[2]

    def handle_request(self, round: int, request: AgentRequest) -> AgentResponse:
        """What a worker asks for while it runs a task of this round."""
        if isinstance(request, SignRequest):
            return self._sign(round, request)
        if isinstance(request, SpendRequest):
            budget = self._budget()
            return SpendResponse(refused="" if budget is None else budget.book())
        if isinstance(request, ReleaseNoteRequest):
            return ReleaseNoteResponse(note=self._release_note(round, request.client))
        return ReleaseResponse(times=self._release(round, request))

    def check_booked(self, task: str) -> None:
        """Raise unless what a noisy answer costs was booked before a result of this task leaves."""
        budget = self._budget()
        if budget is not None and task != ANALYSIS_BEGIN and not budget.is_booked():
            raise ConfigError("the job's process returned a step of an answer before it was booked; nothing leaves")

    def _release(self, round: int, request: ReleaseRequest) -> int:
        if request.client not in self._own:
            return 0
        release = (self._submission, self._local_index(request.client), round, request.kind, request.note)
        if request.instead_of:
            return self._records.replace_release(*release, request.instead_of)
        return self._records.record_release(*release)

    def _release_note(self, round: int, client: int) -> bytes:
        if client not in self._own:
            return b""
        return self._records.release_note(self._submission, self._local_index(client), round)

    def _sign(self, round: int, request: SignRequest) -> SignResponse:
        client, content = request.client, request.content
        if client not in self._own and not (client == KEEPER_NUMBER and self._may_keep_masks()):
            what = "act as mask keeper" if client == KEEPER_NUMBER else f"sign for client {client}"
            return SignResponse(refused=f"this site does not {what}")
        if len(content) > MAX_STATEMENT_BYTES:
            return SignResponse(
                refused=f"the statement to sign has {len(content)} bytes; the limit is {MAX_STATEMENT_BYTES}"
            )
        ballot = (self._submission, self._local_index(client), request.ballot, content)
        if request.ballot and not self._records.record_ballot(*ballot):
            return SignResponse(refused="a different statement was already signed for this ballot")
        statement = statement_bytes(self._submission, round, client, content)
        return SignResponse(signature=self._kit.key.sign(statement, ALGORITHM))

    def _local_index(self, client: int) -> int:
        """The index under which the site's records know a client."""
        return client - self._own.start

    def _checked_key(self, peer_site: PeerSite, revocations: RevocationList) -> SitePublicKey | None:
        try:
            certificate = read_certificate(peer_site.certificate)
            peer = check_certificate(certificate, self._kit.authority, self._now())
            revocations.check(peer)
            if (peer.name, peer.kind) != (peer_site.site, "site"):
                raise IdentityError(f"the certificate for {peer_site.site} is that of {peer}")
        except IdentityError as error:
            if (peer_site.site, str(error)) not in self._warned:
                self._warned.add((peer_site.site, str(error)))
                log.warning("job %s: ignoring what site %s signs: %s", self._job, peer_site.site, error)
            return None
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return SitePublicKey(
            site=peer_site.site, first_client=peer_site.first_client, client_count=peer_site.client_count, key=key
        )

    @property
    def _own(self) -> range:
        return self._numbering.get(self._kit.name, range(0))

    def _fix(self, numbers: Mapping[str, range]) -> None:
        self._records.fix_numbering(self._submission, numbers)
        self._numbering = self._records.numbering(self._submission)

    def _inconsistency(self, peer_sites: Sequence[PeerSite]) -> str | None:
        names = [each.site for each in peer_sites]
        if len(set(names)) < len(names):
            return "it lists a site twice"
        if self._allowed_sites and (others := sorted({*names} - self._allowed_sites)):
            return f"it lists {others[0]}, which the job's author did not name"
        listed, fixed = _numbers(peer_sites), {**self._numbering, self._kit.name: self._own}
        if wrong := [site for site in listed if fixed.get(site, listed[site]) != listed[site]]:
            return f"its clients for {wrong[0]} differ from those fixed earlier in this job"
        ordered = sorted((fixed | listed).values(), key=lambda clients: clients.start)
        if any(one.stop > other.start for one, other in pairwise(ordered)):
            return "it assigns a client to two sites"
        return None


def _numbers(peer_sites: Sequence[PeerSite]) -> dict[str, range]:
    return {each.site: range(each.first_client, each.first_client + each.client_count) for each in peer_sites}
