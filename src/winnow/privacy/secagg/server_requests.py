"""Tasks of the server to clients, in a protocol of several steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from winnow.core import Federation, Reply, Task
from winnow.learn.reply_checks import ExpectedReply, Rejection, check_replies

NO_EXPECTATION = ExpectedReply(parts={}, reply_parts=(), reference=None)
"""Each step checks what its replies contain."""


@dataclass(kw_only=True)
class StepDispatcher:
    """Dispatches tasks, and records who answered (without payloads) and who was refused."""

    federation: Federation
    answered: list[Reply] = field(default_factory=list)
    refused: list[Rejection] = field(default_factory=list)

    def ask(self, tasks: Sequence[Task]) -> Iterator[Reply]:
        """The valid replies as they arrive; a client that fails is refused with the reason."""
        silent = {task.client: task for task in tasks}
        with self.federation.dispatch(tasks) as exchange:
            for outcome in exchange:
                silent.pop(outcome.task.client, None)
                sound, refused, answered = check_replies([outcome], NO_EXPECTATION)
                self.answered += [replace(reply, payload={}, peer_messages={}) for reply in answered]
                self.refused += refused
                yield from sound
        for client, task in sorted(silent.items()):
            self.refuse(client, f"did not answer {task.name} before the deadline")

    def refuse(self, client: int, reason: str) -> None:
        self.refused.append(Rejection(client=client, reason=reason))
