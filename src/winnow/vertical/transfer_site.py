"""A site's side of transfer learning: that of split learning, and the head that changes hands at the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.core import DataError, Handler, Randomness, Reply, Task
from winnow.core.errors import first_line
from winnow.core.message_decoding import UnreadableError
from winnow.data.preprocessing import Preprocessing
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.label_party import LabelParty
from winnow.vertical.split_site import STATE, SplitError, SplitSite, answered_one_by_one, peer_message
from winnow.vertical.trained_module import TrainedModule
from winnow.vertical.transfer_party import TransferLabelParty
from winnow.vertical.transfer_plan import TransferPlan
from winnow.vertical.transferred_head import HeadMessage, decode_head, encode_head

HAND_OVER, RECEIVE = "transfer-hand-over", "transfer-receive"
HEAD_STATE = "head."


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedModel:
    """What the owner without labels has at the end: a model over its own columns alone."""

    encoder: TrainedModule
    head: nn.Module
    told: HeadMessage
    rows: KeyedRows
    """All that the owner has, common or not."""

    def outputs(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = self.head.eval()(self.encoder.outputs(x))
        return found

    def predictions(self, outputs: Tensor) -> NDArray[Any]:
        """Labels as their owner calls them, or values."""
        return Preprocessing(classes=self.told.labels).decode(outputs) if self.told.has_classes else outputs.numpy()

    def check(self) -> None:
        """What came must fit: encoder, head and labels."""
        assert self.rows.x is not None
        try:
            self.predictions(self.outputs(self.rows.x[:2]))
        except (DataError, RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UnreadableError(f"the head does not fit: {first_line(error)}") from error


class TransferSite(SplitSite):
    """`on_received` gets the model of the owner without labels, where this site is that owner."""

    def __init__(
        self,
        plan: TransferPlan,
        rows: Callable[[int], KeyedRows],
        name_of: Callable[[int], str],
        randomness: Randomness,
        begin_epoch: Callable[[int, int, int], bool] = lambda client, epoch, attempt: True,
        on_trained: Callable[[Mapping[str, nn.Module]], None] = lambda modules: None,
        on_received: Callable[[ReceivedModel], None] = lambda model: None,
    ) -> None:
        super().__init__(plan, rows, name_of, randomness, begin_epoch, on_trained)
        self._transfer, self._on_received = plan, on_received

    def handlers(self) -> dict[str, Handler[Any]]:
        steps = {HAND_OVER: self._hand_over, RECEIVE: self._receive}
        return {**super().handlers(), **{name: answered_one_by_one(step) for name, step in steps.items()}}

    def _label_party(self, rows: KeyedRows, held: KeyedRows) -> LabelParty:
        return TransferLabelParty(self._transfer, rows, held.without(rows.keys))

    def _hand_over(self, task: Task) -> Reply:
        """The head as it is after the last epoch, for nobody but the owner without labels."""
        request, owner = self._request(task)
        if owner != self._plan.labels:
            raise SplitError("this owner has no head to hand over")
        held = self._kept(task)
        if held.epochs != self._plan.epochs:
            raise SplitError(f"{held.epochs} of {self._plan.epochs} epochs are over; the head leaves at the end")
        party = self._label_party(self._rows(task.client).ordered(held.keys), self._rows(task.client))
        assert isinstance(party, TransferLabelParty)
        party.restore(held.of("labels."))
        held_rows = self._rows(task.client)
        message = encode_head(party.head(), held_rows.classes is not None, held_rows.labels)
        return Reply(task=task, peer_messages={request.owners[self._transfer.receiver]: message})

    def _receive(self, task: Task) -> Reply:
        request, owner = self._request(task)
        if owner != self._transfer.receiver:
            raise SplitError("this owner receives no head")
        message = peer_message(task, request.owners[self._plan.labels], self._plan.labels)
        told, state = decode_head(message, self._plan.top)
        model = received_model(self._transfer, self._kept(task).of("bottom."), state, told, self._rows(task.client))
        model.check()
        self._on_received(model)
        kept = {**task.client_state[STATE], **{f"{HEAD_STATE}{name}": value for name, value in state.items()}}
        return Reply(task=task, new_client_state={STATE: kept})


def received_model(
    plan: TransferPlan,
    encoder: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    told: HeadMessage,
    rows: KeyedRows,
) -> ReceivedModel:
    """From what the owner kept, and the head it was given."""
    module = TrainedModule(plan.bottoms[plan.receiver], plan, plan.receiver)
    module.restore(encoder)
    own = TrainedModule(plan.top, plan, f"{plan.receiver} (head)").module
    own.load_state_dict(dict(head))
    return ReceivedModel(encoder=module, head=own, told=told, rows=rows)
