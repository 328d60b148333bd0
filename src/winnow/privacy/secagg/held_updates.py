"""Updates that stay at their site: a reply tells the form of its update, and the update waits to be asked for, once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from winnow.core import Arrays, Failure, Handler, Outcome, Payload, Reply, Task
from winnow.learn.party_identities import PartyIdentities
from winnow.learn.reply_checks import is_bounded
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.protocol_tasks import UPDATE_LAYOUT, as_array
from winnow.privacy.secagg.update_layout import MODEL, UpdateLayout, sorted_parts

UNSUMMED_PARTS = frozenset({"profile"})
"""Parts of a reply that leave outside of the sums."""
ALREADY_RELEASED = "an update of this round or a later one was already sent"


@dataclass(frozen=True, kw_only=True)
class HeldUpdate:
    """A client's update, and the task of training that it is the answer to."""

    parts: Payload
    form: UpdateLayout
    task: Task

    @property
    def model(self) -> Arrays:
        """The model that it departs from."""
        return self.task.payload[MODEL]


class HeldUpdateStore:
    """The updates of a site's clients that have not left yet."""

    def __init__(self, identities: PartyIdentities) -> None:
        self._identities = identities
        self._held: dict[int, HeldUpdate] = {}
        self._last_round: dict[int, int] = {}
        self._called_back: dict[int, bytes] = {}
        """Notes of where updates of this round went for nothing, by client."""

    def hold(self, tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
        """A filter: updates stay here, and only their form leaves, whatever the task was."""
        if not all(is_bounded(task.payload.get(MODEL, {})) for task in tasks):
            reason = "the model in the task has values that are not finite or are too large"
            return [Failure(task=task, stage="holding its update back", reason=reason) for task in tasks]
        for client in [each for each, held in self._held.items() if held.task.round < tasks[0].round]:
            self.forget(client)
        return [self._kept_back(task, outcome) for task, outcome in zip(tasks, call_next(tasks, site), strict=True)]

    def look(self, task: Task) -> HeldUpdate:
        """The update that a task asks for; refused if one of that round has left before, and was not called back."""
        if task.round <= self._last_round.get(task.client, -1) and task.client not in self._called_back:
            raise ProtocolError(ALREADY_RELEASED)
        held = self._held.get(task.client)
        if held is None or held.task.round != task.round:
            raise ProtocolError("there is no update of this round")
        return held

    def let_out(self, task: Task, note: bytes = b"") -> None:
        """The update leaves, once and for all: that is known even to a process that begins anew. It stays here as well
        until the round is over, as where it went may be closed.
        """
        before = self._called_back.get(task.client, b"")
        if not self._identities.release(task.client, task.round, note=note, instead_of=before):
            raise ProtocolError(ALREADY_RELEASED)
        self._last_round[task.client] = task.round
        self._called_back.pop(task.client, None)

    def call_back(self, task: Task, note: bytes) -> None:
        """Where the update of this round went with this note, it will never be seen: it may leave again."""
        self._called_back[task.client] = note

    def forget(self, client: int) -> None:
        self._held.pop(client, None)
        self._called_back.pop(client, None)

    def _kept_back(self, task: Task, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply) or MODEL not in outcome.payload:
            return outcome
        sent = {MODEL: task.payload.get(MODEL, {})}
        parts = sorted_parts(
            {
                name: _finite_or_unchanged(part, sent.get(name, {}))
                for name, part in outcome.payload.items()
                if name not in UNSUMMED_PARTS
            }
        )
        outside = {name: part for name, part in outcome.payload.items() if name in UNSUMMED_PARTS}
        form = UpdateLayout.of(parts)
        self._held[task.client] = HeldUpdate(parts=parts, form=form, task=task)
        return replace(outcome, payload={**outside, UPDATE_LAYOUT: {"form": as_array(form.write())}})


def _finite_or_unchanged(part: Arrays, sent: Arrays) -> Arrays:
    """The part without what is not finite: there it is as it was sent, or zero. To refuse it would be an exact answer
    to whoever chose the model, and what leaves in a sum is to tell nothing else.
    """
    if is_bounded(part):
        return part
    return {
        name: torch.where(tensor.isfinite(), tensor, sent[name].to(tensor) if name in sent else 0)
        for name, tensor in part.items()
    }
