"""The mask keeper at a site, which the server reaches by tasks like any other party."""

from winnow.core import Failure, Federation, Reply, Task, Work
from winnow.learn.profile_comparison import SiteExtension
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.mask_keeper_messages import RemoteKeeper, answer_keeper_request
from winnow.privacy.secagg.protocol_tasks import SECURE, as_array, payload_bytes, reply_with, step_handler
from winnow.privacy.secagg.third_party_mask_keeper import MaskKeeper

KEEPER_REQUEST = "secure-keeper-request"


class KeeperSite:
    """The keeper's side. Seeds exist only in this object's memory.

    Any site could answer such tasks, but clients seal their seeds only to a key that the named site has signed.
    """

    def __init__(self, keeper: MaskKeeper) -> None:
        self._keeper = keeper

    def extension(self) -> SiteExtension:
        return SiteExtension(handlers={KEEPER_REQUEST: step_handler(self._answer)})

    def _answer(self, task: Task) -> Reply:
        return reply_with(task, response=answer_keeper_request(self._keeper, payload_bytes(task.payload, "request")))


class KeeperClient(RemoteKeeper):
    """The server's side, in one round: tasks to the keeper are addressed to one of its site's clients."""

    def __init__(self, federation: Federation, client: int, round: int, version: int) -> None:
        self._federation, self._client, self._round, self._version = federation, client, round, version

    def ask(self, request: bytes) -> bytes:
        task = Task(
            name=KEEPER_REQUEST,
            client=self._client,
            round=self._round,
            version=self._version,
            payload={SECURE: {"request": as_array(request)}},
            work=Work(download_bytes=len(request)),
        )
        with self._federation.dispatch([task]) as exchange:
            for outcome in exchange:
                if isinstance(outcome, Failure):
                    raise ProtocolError(outcome.reason)
                return payload_bytes(outcome.payload, "response")
        raise ProtocolError("the mask keeper did not answer before the deadline")
