"""A program that talks to clients in every way there is: it runs in a simulation and is submitted unchanged."""

WHISPER = b"derepsihw"
"""What messages begin with. It stands nowhere in the program itself, which a server may read."""

PROGRAM = '''
import numpy as np

import winnow
from winnow.core import Failure, Reply, RoundFinished, Snapshot, Task
from winnow.core.broadcast_and_relay import broadcast, first, peer_messages, relay, send, wait


WHISPER = "whispered"[::-1]


def add(tasks, holdings):
    """What was sent, and the sum of the client's labels, so many times."""
    for task in tasks:
        own = float(holdings.examples(task.client).y.sum()) * task.settings["times"]
        sent = float(task.payload["total"]["sum"][0]) if task.payload else 0.0
        yield Reply(task=task, payload={"total": {"sum": np.array([sent + own])}})


def write(tasks, holdings):
    """A message to the next client."""
    for task in tasks:
        text = f"{WHISPER} {task.client}, {int(holdings.examples(task.client).y.sum())}"
        yield Reply(task=task, peer_messages={(task.client + 1) % task.settings["clients"]: text.encode()})


def read(tasks, holdings):
    """How many bytes of messages there are, and whether they are from whom they say."""
    for task in tasks:
        right = all(text.startswith(f"{WHISPER} {sender},".encode()) for sender, text in task.peer_messages.items())
        length = sum(map(len, task.peer_messages.values()))
        yield Reply(task=task, metrics={"messages": len(task.peer_messages), "length": length, "right": right})


def stumble(tasks, holdings):
    return [Failure(task=task, stage="stumbling", reason=f"a stone before {task.client}") for task in tasks]


def listed(handler):
    return lambda tasks, holdings: list(handler(tasks, holdings))


def totals(outcomes):
    return [float(outcome.payload["total"]["sum"][0]) for outcome in outcomes]


class Talk:
    def __init__(self):
        self.found = {}

    def run(self, federation):
        clients = range(len(federation.population))

        def asking(name, client=0, **settings):
            return Task(name=name, client=client, round=1, version=0, settings=settings)

        everyone = broadcast(federation, asking("add", times=2), clients)
        alone = send(federation, asking("add", 1, times=3), asking("add", 2, times=4))
        self.found["alone"] = totals(wait(alone))
        self.found["everyone"] = totals(wait(everyone))
        with first(federation, 2, asking("add", times=5), clients) as exchange:
            self.found["first"] = len(list(exchange))
        self.found["relay"] = totals(relay(federation, asking("add", times=1), [2, 0, 1]))
        failing = wait(broadcast(federation, asking("stumble"), clients))
        self.found["failures"] = [(outcome.task.client, outcome.reason) for outcome in failing]
        post = peer_messages(wait(broadcast(federation, asking("write", clients=len(clients)), clients)))
        self.found["readable"] = any(WHISPER.encode() in each for sent in post.values() for each in sent.values())
        tasks = [
            Task(name="read", client=client, round=1, version=0, peer_messages=post[client]) for client in sorted(post)
        ]
        replies = wait(send(federation, *tasks))
        self.found["messages"] = [sorted(reply.metrics.items()) for reply in replies]
        yield RoundFinished(round=1, at=federation.clock.now, version=1, metrics={}, aggregated=np.arange(0))

    def snapshot(self):
        return Snapshot(arrays={"done": np.ones(1)}, values={"found": self.found})

    def restore(self, snapshot):
        self.found = snapshot.values["found"]


talk = Talk()
handlers = {"add": listed(add), "write": listed(write), "read": listed(read), "stumble": stumble}
winnow.run_workflow(talk, handlers, data={"name": "digits", "clients": 6}, seed=4)
print("found", sorted(talk.found))
'''
