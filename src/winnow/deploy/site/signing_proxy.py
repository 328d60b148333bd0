"""Speaks for a site's clients in one job: signs what they say to others, and tells their process whom to believe.

The job's process holds no key. What it has signed is bound to the job, the round and the client, so it cannot be used
as anything else; and the certificates of other sites, which came from the server, are checked here.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from winnow.core.errors import ConfigError
from winnow.deploy.jobs.ipc import (
    ReleaseNoteRequest,
    ReleaseNoteResponse,
    ReleaseRequest,
    ReleaseResponse,
    SignRequest,
    SignResponse,
    SitePublicKey,
)
from winnow.deploy.jobs.signed_statements import KEEPER_NUMBER, statement_bytes
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import check_certificate, read_certificate, utc_now
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.signed_documents import ALGORITHM
from winnow.deploy.wire.messages import PeerSite

log = logging.getLogger(__name__)

MAX_STATEMENT_BYTES = 1 << 20
"""Bytes of a statement."""


class SigningProxy:
    """Of one job, as its author submitted it."""

    def __init__(
        self,
        kit: Kit,
        state: SiteStateStore,
        submission: str,
        *,
        named: Sequence[str] = (),
        keeps: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`named` are the only sites that the job's author wants, if any; `keeps` says if this site keeps masks."""
        self._kit, self._state, self._submission, self._named = kit, state, submission, frozenset(named)
        self._keeps, self._now = keeps, now
        self._revoked = kit.watch_revocations()
        self._neighbours: tuple[PeerSite, ...] = ()
        self._known: tuple[int, int, list[SitePublicKey]] | None = None
        self._warned: set[tuple[str, str]] = set()
        self._numbering = state.numbering(submission)

    @property
    def neighbours(self) -> Sequence[PeerSite]:
        """Where the job's clients are, if the server's list of that is believed."""
        return self._neighbours

    @property
    def revocations(self) -> RevocationList:
        return self._revoked.current()

    def first_number(self, said: int | None) -> int | None:
        """The number of this site's first client: as it was fixed in this job, or else as the server says."""
        own = self._numbering.get(self._kit.name)
        if own is None:
            return said
        if said not in (None, own.start):
            raise ConfigError(
                f"the server numbers this site's clients from {said}, and in this job they are numbered from "
                f"{own.start}; the job must be submitted anew"
            )
        return own.start

    def number(self, first: int | None, clients: int) -> None:
        """Fix the numbers of this site's own clients, of whom its data have so many, once they are known.

        What they have let out is booked by these numbers, and the job's process finds their data by the same ones: a
        server that could change either would get one client's noisy update as often as it liked.
        """
        first = self.first_number(first)
        if first is None:
            return
        self._fix({self._kit.name: range(first, first + clients)})
        if (before := len(self._own)) != clients:
            raise ConfigError(
                f"this site's data have {clients} clients, and had {before} when the job began here; "
                "the job must be submitted anew"
            )

    def know(self, neighbours: Sequence[PeerSite]) -> None:
        """Where the job's clients are, as the server says. What contradicts itself, or what it has said before in this
        job, is not believed.
        """
        self._known = None
        self._neighbours = ()
        if fault := self._fault(neighbours):
            log.warning("the server's list of this job's sites is not believed: %s", fault)
            return
        self._neighbours = tuple(neighbours)
        self._fix(_numbers(neighbours))

    def signatories(self, round: int) -> list[SitePublicKey]:
        """The sites whose signatures count; worked out anew for each round, and when certificates are revoked."""
        revocations = self.revocations
        if self._known is None or self._known[:2] != (round, revocations.number):
            found = [self._signatory(each, revocations) for each in self._neighbours]
            self._known = (round, revocations.number, [each for each in found if each is not None])
        return self._known[2]

    def certify(
        self, round: int, wish: SignRequest | ReleaseRequest | ReleaseNoteRequest
    ) -> SignResponse | ReleaseResponse | ReleaseNoteResponse:
        """What a worker asks for while it does a task of this round."""
        if isinstance(wish, ReleaseRequest):
            place = self._place(wish.client)
            if wish.client not in self._own:
                return ReleaseResponse(times=0)
            noted = (wish.note, wish.instead_of)
            return ReleaseResponse(times=self._state.release(self._submission, place, round, wish.what, *noted))
        if isinstance(wish, ReleaseNoteRequest):
            ours = wish.client in self._own
            return ReleaseNoteResponse(
                note=self._state.noted(self._submission, self._place(wish.client), round) if ours else b""
            )
        if wish.client not in self._own and not (wish.client == KEEPER_NUMBER and self._keeps()):
            who = "keep masks" if wish.client == KEEPER_NUMBER else f"sign for client {wish.client}"
            return SignResponse(refused=f"this site does not {who}")
        if len(wish.content) > MAX_STATEMENT_BYTES:
            return SignResponse(
                refused=f"what is to be signed has {len(wish.content)} bytes; {MAX_STATEMENT_BYTES} are the most"
            )
        if wish.ballot and not self._state.cast(self._submission, self._place(wish.client), wish.ballot, wish.content):
            return SignResponse(refused="something else was signed for this ballot before")
        said = statement_bytes(self._submission, round, wish.client, wish.content)
        return SignResponse(signature=self._kit.key.sign(said, ALGORITHM))

    def _place(self, client: int) -> int:
        """Under this number of our own the site's records know a client."""
        return client - self._own.start

    def _signatory(self, neighbour: PeerSite, revocations: RevocationList) -> SitePublicKey | None:
        try:
            certificate = read_certificate(neighbour.certificate)
            peer = check_certificate(certificate, self._kit.authority, self._now())
            revocations.check(peer)
            if (peer.name, peer.kind) != (neighbour.site, "site"):
                raise IdentityError(f"the certificate for {neighbour.site} is that of {peer}")
        except IdentityError as error:
            if (neighbour.site, str(error)) not in self._warned:
                self._warned.add((neighbour.site, str(error)))
                log.warning("what %s says in this job does not count: %s", neighbour.site, error)
            return None
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return SitePublicKey(
            site=neighbour.site, clients_from=neighbour.first_client, clients=neighbour.client_count, key=key
        )

    @property
    def _own(self) -> range:
        return self._numbering.get(self._kit.name, range(0))

    def _fix(self, numbers: Mapping[str, range]) -> None:
        self._state.number(self._submission, numbers)
        self._numbering = self._state.numbering(self._submission)

    def _fault(self, neighbours: Sequence[PeerSite]) -> str | None:
        names = [each.site for each in neighbours]
        if len(set(names)) < len(names):
            return "it names a site twice"
        if self._named and (strangers := sorted({*names} - self._named)):
            return f"it has {strangers[0]}, whom the job's author did not name"
        said, fixed = _numbers(neighbours), {**self._numbering, self._kit.name: self._own}
        if wrong := [site for site in said if fixed.get(site, said[site]) != said[site]]:
            return f"it gives {wrong[0]} other clients than it has in this job"
        ordered = sorted((fixed | said).values(), key=lambda clients: clients.start)
        if any(one.stop > other.start for one, other in pairwise(ordered)):
            return "it gives a client to two sites"
        return None


def _numbers(neighbours: Sequence[PeerSite]) -> dict[str, range]:
    return {each.site: range(each.first_client, each.first_client + each.client_count) for each in neighbours}
