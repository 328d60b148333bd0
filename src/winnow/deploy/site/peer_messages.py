"""Letters between clients at different sites: sealed here, for the addressee's site alone, and opened here."""

from collections.abc import Callable, Mapping, Sequence

from winnow.deploy.trust.errors import SealedMessageError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.sealed_messages import SealingContext, seal, unseal
from winnow.deploy.wire.messages import PeerSite, WireTask


class PeerMessageCipher:
    """Knows where the clients of a job are. A job's process sees letters in plain, the server never does."""

    def __init__(
        self,
        kit: Kit,
        job: str,
        neighbours: Sequence[PeerSite],
        revocations: Callable[[], RevocationList | None] = lambda: None,
    ) -> None:
        """`revocations` gives the list that is in force; without it, the kit's own counts."""
        self._kit, self._job, self._neighbours, self._revocations = kit, job, neighbours, revocations

    def sealed(self, task: WireTask, sender: int, letters: Mapping[int, bytes]) -> dict[int, bytes]:
        """The letters of one of our clients, by addressee."""
        revoked = self._revocations()
        return {
            to: seal(self._kit, self._home(to).certificate, self._context(task, sender, to), plain, revoked)
            for to, plain in letters.items()
        }

    def opened(self, task: WireTask) -> dict[int, dict[int, bytes]]:
        """A task's letters to our clients, by addressee and sender."""
        revoked = self._revocations()

        def plain(sender: int, to: int, box: bytes) -> bytes:
            return unseal(self._kit, box, self._context(task, sender, to), revoked)[1]

        return {
            to: {sender: plain(sender, to, box) for sender, box in letters.items()}
            for to, letters in task.peer_messages.items()
        }

    def _context(self, task: WireTask, sender: int, to: int) -> SealingContext:
        return SealingContext(
            job=self._job,
            round=task.round,
            sender=self._home(sender).site,
            recipient=self._home(to).site,
            subject=f"client {sender} to client {to}",
        )

    def _home(self, client: int) -> PeerSite:
        for each in self._neighbours:
            if each.clients_from <= client < each.clients_from + each.clients:
                return each
        raise SealedMessageError(f"no site of job {self._job} is known to have client {client}")
