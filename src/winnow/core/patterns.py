"""Ways to talk to clients, for authors of workflows. Each is a few lines on `Federation.dispatch`.

`broadcast`, `send` and `first` do not wait: they give the open exchange, to be read, sent more tasks, or closed. `wait`
waits. A relay waits for one client after another, as fast as it is iterated.

    replies = wait(broadcast(federation, task, range(10)))
    with first(federation, 3, task, range(10)) as exchange: ...
    for outcome in relay(federation, task, [2, 0, 1]): ...
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from winnow.core.federation import Exchange, Federation, Until
from winnow.core.task import Outcome, Payload, Reply, Task


def broadcast(federation: Federation, task: Task, clients: Iterable[int]) -> Exchange:
    """The same task for many clients; its own `client` does not count."""
    return federation.dispatch([replace(task, client=client) for client in clients])


def send(federation: Federation, *tasks: Task) -> Exchange:
    """A task of its own for each of some clients."""
    return federation.dispatch(tasks)


def first(
    federation: Federation, replies: int, task: Task, clients: Iterable[int], seconds: float | None = None
) -> Exchange:
    """The same task for many clients, until so many have replied, or so much time has passed."""
    tasks = [replace(task, client=client) for client in clients]
    return federation.dispatch(tasks, Until(replies=replies, seconds=seconds))


def wait(exchange: Exchange) -> list[Outcome]:
    """All outcomes that are to come, in the order of the clients' numbers; then the exchange is closed."""
    with exchange:
        return sorted(exchange, key=lambda outcome: outcome.task.client)


def relay(federation: Federation, task: Task, clients: Iterable[int]) -> Iterator[Outcome]:
    """One client after another, each with what the one before it replied. Those that fail are passed over."""
    payload: Payload = task.payload
    for client in clients:
        (outcome,) = wait(send(federation, replace(task, client=client, payload=payload)))
        yield outcome
        if isinstance(outcome, Reply):
            payload = outcome.payload
