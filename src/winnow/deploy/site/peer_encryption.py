"""Messages between clients at different sites: encrypted for the recipient's site alone, and decrypted there."""

from collections.abc import Callable, Mapping, Sequence

from winnow.deploy.trust.errors import SealedMessageError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.sealed_messages import SealingContext, seal, unseal
from winnow.deploy.wire.messages import PeerSite, WireTask


class PeerMessageCipher:
    """Of one job. Its processes see messages in plain; the server never does."""

    def __init__(
        self,
        kit: Kit,
        job: str,
        peer_sites: Sequence[PeerSite],
        revocations: Callable[[], RevocationList | None] = lambda: None,
    ) -> None:
        """`revocations` gives the list in force; without it, the kit's own counts."""
        self._kit, self._job, self._peer_sites, self._revocations = kit, job, peer_sites, revocations

    def encrypt(self, task: WireTask, sender: int, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of one of our clients, by recipient."""
        revoked = self._revocations()
        return {
            to: seal(self._kit, self._site_of(to).certificate, self._context(task, sender, to), plain, revoked)
            for to, plain in messages.items()
        }

    def decrypt(self, task: WireTask) -> dict[int, dict[int, bytes]]:
        """A task's messages to our clients, by recipient and sender."""
        revoked = self._revocations()

        def plain(sender: int, to: int, box: bytes) -> bytes:
            return unseal(self._kit, box, self._context(task, sender, to), revoked)[1]

        return {
            to: {sender: plain(sender, to, box) for sender, box in boxes.items()}
            for to, boxes in task.peer_messages.items()
        }

    def _context(self, task: WireTask, sender: int, to: int) -> SealingContext:
        return SealingContext(
            job=self._job,
            round=task.round,
            sender=self._site_of(sender).site,
            recipient=self._site_of(to).site,
            subject=f"client {sender} to client {to}",
        )

    def _site_of(self, client: int) -> PeerSite:
        for each in self._peer_sites:
            if each.first_client <= client < each.first_client + each.client_count:
                return each
        raise SealedMessageError(f"client {client} belongs to no known site of job {self._job}")
