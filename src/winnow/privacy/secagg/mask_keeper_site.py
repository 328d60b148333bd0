"""The mask keeper at a site: a party of the federation that is asked by tasks, as any other is."""

from winnow.core import Failure, Federation, Reply, Task, Work
from winnow.learn.profile_comparison import SiteExtension
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.mask_keeper import MaskKeeper
from winnow.privacy.secagg.mask_keeper_messages import RemoteKeeper, answer_keeper_request
from winnow.privacy.secagg.protocol_tasks import SECURE, as_array, carried, reply_with, step_handler

KEEPER_REQUEST = "secure-keeper-request"


class KeeperSite:
    """The keeper's own side. Seeds are in this object's memory and nowhere else.

    Any site could answer like that. Clients deposit their seeds only with the key that the named one has signed.
    """

    def __init__(self, keeper: MaskKeeper) -> None:
        self._keeper = keeper

    def extension(self) -> SiteExtension:
        return SiteExtension(handlers={KEEPER_REQUEST: step_handler(self._keep)})

    def _keep(self, task: Task) -> Reply:
        return reply_with(task, said=answer_keeper_request(self._keeper, carried(task.payload, "asked")))


class KeeperClient(RemoteKeeper):
    """The server's side, in one round: the keeper is reached under the number of one of its site's clients."""

    def __init__(self, federation: Federation, client: int, round: int, version: int) -> None:
        self._federation, self._client, self._round, self._version = federation, client, round, version

    def ask(self, question: bytes) -> bytes:
        task = Task(
            name=KEEPER_REQUEST,
            client=self._client,
            round=self._round,
            version=self._version,
            payload={SECURE: {"asked": as_array(question)}},
            work=Work(download_bytes=len(question)),
        )
        with self._federation.dispatch([task]) as exchange:
            for outcome in exchange:
                if isinstance(outcome, Failure):
                    raise ProtocolError(outcome.reason)
                return carried(outcome.payload, "said")
        raise ProtocolError("the mask keeper did not answer before the deadline")
