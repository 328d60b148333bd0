"""The mask keeper at a site: a party of the federation that is asked by tasks, as any other is."""

from winnow.core import Failure, Federation, Reply, Task, Work
from winnow.learn.matching import AtSites
from winnow.privacy.secure.keeper import MaskKeeper
from winnow.privacy.secure.keeper_talk import AskedKeeper, answer
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.steps import SECURE, answering, as_array, carried, saying

KEEP = "secure-keep"


class KeeperSite:
    """The keeper's own side. Seeds are in this object's memory and nowhere else.

    Any site could answer like that. Clients deposit their seeds only with the key that the named one has signed.
    """

    def __init__(self, keeper: MaskKeeper) -> None:
        self._keeper = keeper

    def at_site(self) -> AtSites:
        return AtSites(handlers={KEEP: answering(self._keep)})

    def _keep(self, task: Task) -> Reply:
        return saying(task, said=answer(self._keeper, carried(task.payload, "asked")))


class KeeperAtSite(AskedKeeper):
    """The server's side, in one round: the keeper is reached under the number of one of its site's clients."""

    def __init__(self, federation: Federation, client: int, round: int, version: int) -> None:
        self._federation, self._client, self._round, self._version = federation, client, round, version

    def ask(self, question: bytes) -> bytes:
        task = Task(
            name=KEEP,
            client=self._client,
            round=self._round,
            version=self._version,
            payload={SECURE: {"asked": as_array(question)}},
            work=Work(download_bytes=len(question)),
        )
        with self._federation.dispatch([task]) as exchange:
            for outcome in exchange:
                if isinstance(outcome, Failure):
                    raise RefusedError(outcome.reason)
                return carried(outcome.payload, "said")
        raise RefusedError("the mask keeper did not answer in time")
