"""The server's side of transfer learning: split learning over the common rows; at the end the head changes hands."""

from collections.abc import Iterator

from winnow.core import AnyEvent, Federation
from winnow.core.broadcast_and_relay import peer_messages
from winnow.vertical.split_workflow import Asking, Carried, EpochError, SplitLearning
from winnow.vertical.transfer_plan import TransferPlan
from winnow.vertical.transfer_site import HAND_OVER, RECEIVE


class TransferLearning(SplitLearning):
    """One round more than split learning has: the last one brings the head to the owner without labels."""

    def __init__(self, plan: TransferPlan) -> None:
        super().__init__(plan)
        self._transfer = plan

    def _after_epochs(self, federation: Federation) -> Iterator[AnyEvent]:
        plan = self._transfer
        if self.round > plan.epochs + 1:
            return
        ask = Asking(federation, self._numbers, self.round + 1, plan.epochs - 1, 0)
        try:
            handed = ask.all([ask.task(HAND_OVER, plan.labels, 0)])
            replies = ask.all([ask.carrying(RECEIVE, plan.receiver, 0, Carried(messages=peer_messages(handed)))])
        except EpochError as error:
            raise self._site_error(error.failure) from None
        self.round += 1
        yield self._ended(federation, replies, {})
