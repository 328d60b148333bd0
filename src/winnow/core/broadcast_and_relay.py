"""Ways to talk to clients, for authors of workflows. Each is a few lines on `Federation.dispatch`.

`broadcast`, `send` and `first` do not wait: they give the open exchange, to be read, sent more tasks, or closed. `wait`
waits. A relay waits for one client after another, as fast as it is iterated.

    replies = wait(broadcast(federation, task, range(10)))
    with first(federation, 3, task, range(10)) as exchange: ...
    for outcome in relay(federation, task, [2, 0, 1]): ...
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from winnow.core.federation import UNTIL_ALL, Exchange, Federation, Until
from winnow.core.reported_number_checks import numbers_fault
from winnow.core.task import Failure, Outcome, Reply, Task
from winnow.core.untrusted_text import error_line, one_line

FindFault: TypeAlias = Callable[[Reply], str | None]
"""Says what is wrong with a reply; None if nothing is."""


def broadcast(federation: Federation, task: Task, clients: Iterable[int], until: Until = UNTIL_ALL) -> Exchange:
    """The same task for many clients; its own `client` does not count."""
    return federation.dispatch([replace(task, client=client) for client in clients], until)


def send(federation: Federation, *tasks: Task) -> Exchange:
    """A task of its own for each of some clients."""
    return federation.dispatch(tasks)


def first(
    federation: Federation, replies: int, task: Task, clients: Iterable[int], seconds: float | None = None
) -> Exchange:
    """The same task for many clients, until so many have replied, or so much time has passed."""
    return broadcast(federation, task, clients, Until(replies=replies, seconds=seconds))


def wait(exchange: Exchange) -> list[Outcome]:
    """All outcomes that are to come, in the order of the clients' numbers; then the exchange is closed."""
    with exchange:
        return sorted(exchange, key=lambda outcome: outcome.task.client)


def relay(
    federation: Federation, task: Task, clients: Iterable[int], fault: FindFault = lambda reply: None
) -> Iterator[Outcome]:
    """One client after another, each with what the one before it replied. Those that fail are passed over, and so are
    those whose reply has a `fault`.
    """
    payload = task.payload
    for client in clients:
        for arrived in wait(send(federation, replace(task, client=client, payload=payload))):
            outcome = reject_faulty(arrived, fault)
            yield outcome
            if isinstance(outcome, Reply):
                payload = outcome.payload


def reject_faulty(outcome: Outcome, fault: FindFault) -> Outcome:
    """The outcome; but a reply with a `fault`, or one over which looking for it fails, is a failure with that reason.

    Whatever a workflow needs of a reply should be looked at here, so that no reply of one client ends the work of all.
    """
    if not isinstance(outcome, Reply):
        return outcome
    try:
        reason = numbers_fault(outcome) or fault(outcome)
    except Exception as error:
        reason = error_line(error)
    return outcome if reason is None else Failure(task=outcome.task, stage="answering", reason=one_line(reason))


def peer_messages(outcomes: Iterable[Outcome]) -> Mapping[int, Mapping[int, bytes]]:
    """What clients wrote to each other, by addressee and then by sender: the `peer_messages` of further tasks.

    A deployed site seals a message for its addressee and for this round, so the tasks that carry it must belong to the
    round in which it was written.
    """
    found: dict[int, dict[int, bytes]] = defaultdict(dict)
    for outcome in outcomes:
        if isinstance(outcome, Reply):
            for addressee, message in outcome.peer_messages.items():
                found[addressee][outcome.task.client] = message
    return found
