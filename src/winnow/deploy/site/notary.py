"""Speaks for a site's clients in one job: signs what they say to others, and tells their process whom to believe.

The job's process holds no key. What it has signed is bound to the job, the round and the client, so it cannot be used
as anything else; and the certificates of other sites, which came from the server, are checked here.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from winnow.deploy.site.state import SiteState
from winnow.deploy.trust.documents import ALGORITHM
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.identity import check_certificate, read_certificate, utc_now
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.revocation import Revocations
from winnow.deploy.wire.messages import Neighbour
from winnow.deploy.work.orders import Release, Released, Sign, Signatory, Signed
from winnow.deploy.work.statements import KEEPER, statement

log = logging.getLogger(__name__)

LONGEST = 1 << 20
"""Bytes of a statement."""


class Notary:
    """Of one job, as its author submitted it."""

    def __init__(
        self,
        kit: Kit,
        state: SiteState,
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
        self._neighbours: tuple[Neighbour, ...] = ()
        self._own = range(0)
        self._known: tuple[int, int, list[Signatory]] | None = None

    @property
    def neighbours(self) -> Sequence[Neighbour]:
        """Where the job's clients are, if the server's list of that is believed."""
        return self._neighbours

    @property
    def revocations(self) -> Revocations:
        return self._revoked.current()

    def know(self, neighbours: Sequence[Neighbour]) -> None:
        """Where the job's clients are, as the server says. A site or a client that is there twice is not believed."""
        self._known = None
        self._neighbours = ()
        self._own = range(0)
        if fault := self._fault(neighbours):
            log.warning("the server's list of this job's sites is not believed: %s", fault)
            return
        self._neighbours = tuple(neighbours)
        for each in neighbours:
            if each.site == self._kit.name:
                self._own = range(each.clients_from, each.clients_from + each.clients)

    def signatories(self, round: int) -> list[Signatory]:
        """The sites whose signatures count; worked out anew for each round, and when certificates are revoked."""
        revocations = self.revocations
        if self._known is None or self._known[:2] != (round, revocations.number):
            found = [self._signatory(each, revocations) for each in self._neighbours]
            self._known = (round, revocations.number, [each for each in found if each is not None])
        return self._known[2]

    def certify(self, round: int, wish: Sign | Release) -> Signed | Released:
        """What a worker asks for while it does a task of this round."""
        if isinstance(wish, Release):
            place = wish.client - self._own.start
            ours = wish.client in self._own
            return Released(times=self._state.release(self._submission, place, round, wish.what) if ours else 0)
        if wish.client not in self._own and not (wish.client == KEEPER and self._keeps()):
            who = "keep masks" if wish.client == KEEPER else f"sign for client {wish.client}"
            return Signed(refused=f"this site does not {who}")
        if len(wish.content) > LONGEST:
            return Signed(refused=f"what is to be signed has {len(wish.content)} bytes; {LONGEST} are the most")
        said = statement(self._submission, round, wish.client, wish.content)
        return Signed(signature=self._kit.key.sign(said, ALGORITHM))

    def _signatory(self, neighbour: Neighbour, revocations: Revocations) -> Signatory | None:
        try:
            certificate = read_certificate(neighbour.certificate)
            peer = check_certificate(certificate, self._kit.authority, self._now())
            revocations.check(peer)
            if (peer.name, peer.kind) != (neighbour.site, "site"):
                raise IdentityError(f"the certificate for {neighbour.site} is that of {peer}")
        except IdentityError as error:
            log.warning("what %s says in this job does not count: %s", neighbour.site, error)
            return None
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return Signatory(site=neighbour.site, clients_from=neighbour.clients_from, clients=neighbour.clients, key=key)

    def _fault(self, neighbours: Sequence[Neighbour]) -> str | None:
        names = [each.site for each in neighbours]
        if len(set(names)) < len(names):
            return "it names a site twice"
        if self._named and (strangers := sorted({*names} - self._named)):
            return f"it has {strangers[0]}, whom the job's author did not name"
        ordered = sorted(neighbours, key=lambda each: each.clients_from)
        if any(one.clients_from + one.clients > other.clients_from for one, other in pairwise(ordered)):
            return "it gives a client to two sites"
        return None
