"""Updates that stay at their site: a training reply contains only the layout, and the update is released once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from winnow.core import Arrays, Failure, Handler, Outcome, Payload, Reply, Task
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.reply_checks import is_bounded
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.protocol_tasks import UPDATE_LAYOUT, as_array
from winnow.privacy.secagg.update_layout import MODEL, UpdateLayout, sorted_parts

UNSUMMED_PARTS = frozenset({"profile"})
"""Parts of a reply that are sent outside of the sums."""
ALREADY_RELEASED = "an update of this round or a later one was already sent"


@dataclass(frozen=True, kw_only=True)
class HeldUpdate:
    """A client's update, and the training task that produced it."""

    parts: Payload
    layout: UpdateLayout
    task: Task

    @property
    def model(self) -> Arrays:
        """The model that training started from."""
        return self.task.payload[MODEL]


class HeldUpdateStore:
    """The updates of a site's clients that have not been released."""

    def __init__(self, identities: PartyIdentities) -> None:
        self._identities = identities
        self._held: dict[int, HeldUpdate] = {}
        self._last_round: dict[int, int] = {}
        self._voided: dict[int, bytes] = {}
        """By client, the note of a release of this round that can never be used."""

    def hold(self, tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
        """A filter: updates stay here and only their layout is sent, whatever the task."""
        if not all(is_bounded(task.payload.get(MODEL, {})) for task in tasks):
            reason = "the model in the task has values that are not finite or are too large"
            return [Failure(task=task, stage="holding its update back", reason=reason) for task in tasks]
        for client in [each for each, held in self._held.items() if held.task.round < tasks[0].round]:
            self.forget(client)
        return [self._held_back(task, outcome) for task, outcome in zip(tasks, call_next(tasks, site), strict=True)]

    def get(self, task: Task) -> HeldUpdate:
        """The update that a task asks for; refused if one of that round was released, and the release is not void."""
        if task.round <= self._last_round.get(task.client, -1) and task.client not in self._voided:
            raise ProtocolError(ALREADY_RELEASED)
        held = self._held.get(task.client)
        if held is None or held.task.round != task.round:
            raise ProtocolError("there is no update of this round")
        return held

    def release(self, task: Task, note: bytes = b"") -> None:
        """Record that the update leaves the site; a restarted process knows it too. The update is kept until the round
        ends, since its session may be closed and the release become void.
        """
        before = self._voided.get(task.client, b"")
        if not self._identities.release(task.client, task.round, note=note, instead_of=before):
            raise ProtocolError(ALREADY_RELEASED)
        self._last_round[task.client] = task.round
        self._voided.pop(task.client, None)

    def void_release(self, task: Task, note: bytes) -> None:
        """The release of this round with this note can never be used: the update may be released again."""
        self._voided[task.client] = note

    def forget(self, client: int) -> None:
        self._held.pop(client, None)
        self._voided.pop(client, None)

    def _held_back(self, task: Task, outcome: Outcome) -> Outcome:
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
        layout = UpdateLayout.of(parts)
        self._held[task.client] = HeldUpdate(parts=parts, layout=layout, task=task)
        return replace(outcome, payload={**outside, UPDATE_LAYOUT: {"layout": as_array(layout.write())}})


def _finite_or_unchanged(part: Arrays, sent: Arrays) -> Arrays:
    """The part with every value that is not finite replaced by the one that was sent, or zero. A refusal would tell
    whoever chose the model something exact about one client, which the sum must not.
    """
    if is_bounded(part):
        return part
    return {
        name: torch.where(tensor.isfinite(), tensor, sent[name].to(tensor) if name in sent else 0)
        for name, tensor in part.items()
    }
