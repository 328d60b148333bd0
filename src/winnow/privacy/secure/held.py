"""Updates that stay at their site: a reply tells the form of its update, and the update waits to be asked for, once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from winnow.core import Arrays, Failure, Handler, Outcome, Payload, Reply, Task
from winnow.learn.parties import Identities
from winnow.learn.replies import finite
from winnow.learn.tree import real
from winnow.privacy.secure.form import MODEL, Form, ordered
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.steps import HELD, as_array

OUTSIDE = frozenset({"profile"})
"""Parts of a reply that leave outside of the sums."""
LEFT_BEFORE = "the update of this round, or of a later one, has left before"


@dataclass(frozen=True, kw_only=True)
class Held:
    """A client's update, and the task of training that it is the answer to."""

    parts: Payload
    form: Form
    task: Task

    @property
    def model(self) -> Arrays:
        """The model that it departs from."""
        return self.task.payload[MODEL]


class HeldUpdates:
    """The updates of a site's clients that have not left yet."""

    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._held: dict[int, Held] = {}
        self._last_round: dict[int, int] = {}

    def hold(self, tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
        """A filter: updates stay here, and only their form leaves, whatever the task was."""
        return [self._kept_back(task, outcome) for task, outcome in zip(tasks, call_next(tasks, site), strict=True)]

    def look(self, task: Task) -> Held:
        """The update that a task asks for; refused if one of that round has left before."""
        if task.round <= self._last_round.get(task.client, -1):
            raise RefusedError(LEFT_BEFORE)
        held = self._held.get(task.client)
        if held is None or held.task.round != task.round:
            raise RefusedError("there is no update of this round")
        return held

    def let_out(self, task: Task) -> None:
        """The update leaves, once and for all: that is known even to a process that begins anew."""
        if not self._identities.release(task.client, task.round):
            raise RefusedError(LEFT_BEFORE)
        self._last_round[task.client] = task.round
        del self._held[task.client]

    def _kept_back(self, task: Task, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply) or MODEL not in outcome.payload:
            return outcome
        parts = ordered({name: part for name, part in outcome.payload.items() if name not in OUTSIDE})
        outside = {name: part for name, part in outcome.payload.items() if name in OUTSIDE}
        if not all(finite(part) for part in parts.values() if real(part)):
            return Failure(task=task, stage="holding its update back", reason="the update is not finite")
        form = Form.of(parts)
        self._held[task.client] = Held(parts=parts, form=form, task=task)
        return replace(outcome, payload={**outside, HELD: {"form": as_array(form.write())}})
