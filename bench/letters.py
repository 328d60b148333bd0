"""Messages between owners: an exchange among three sites; 1,000 numbers of five parties summed, and compared.

The exchange goes the way of a deployed job: server, agents, runner and workers as processes, gRPC with TLS, messages
sealed for their addressees; nothing is committed between two exchanges. Its baseline is one call to the server over the
same kind of link. Sums and comparisons are computed in this process, all parties in turn; their baseline is the sum.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.deploy.world import world
from bench.table import Row
from winnow.privacy.shares.party import SecureStep, StepParty

SITES, LETTER_BYTES, EXCHANGES, WARM_UP = 3, 1_000, 200, 20
PARTIES, NUMBERS, REPEAT = 5, 1_000, 3
PATIENCE = 300
MILLISECONDS = 1_000

PROGRAM = f'''
import json
import os
import time

import numpy as np

import winnow
from winnow.core import Reply, RoundFinished, Snapshot, Task
from winnow.core.broadcast_and_relay import peer_messages, wait


def write(tasks, holdings):
    """A message to every other client."""
    assert all(len(message) == {LETTER_BYTES} for task in tasks for message in task.peer_messages.values())
    return [
        Reply(task=task, peer_messages={{to: os.urandom({LETTER_BYTES}) for to in range({SITES}) if to != task.client}})
        for task in tasks
    ]


class Messages:
    """Exchanges of messages within one round."""

    def run(self, federation):
        messages, seconds = {{}}, []
        for number in range({EXCHANGES + WARM_UP}):
            begun = time.perf_counter()
            replies = wait(
                federation.dispatch(
                    [
                        Task(name="write", client=to, round=1, version=number, peer_messages=messages.get(to, {{}}))
                        for to in range({SITES})
                    ]
                )
            )
            assert all(isinstance(reply, Reply) for reply in replies), replies
            messages = peer_messages(replies)
            seconds.append(time.perf_counter() - begun)
        print(json.dumps({{"seconds": seconds}}))
        yield RoundFinished(round=1, at=federation.clock.now, version=1, metrics={{}}, aggregated=np.arange({SITES}))

    def snapshot(self):
        return Snapshot(arrays={{}}, values={{}})

    def restore(self, snapshot):
        pass


winnow.run_workflow(Messages(), {{"write": write}}, data="numbers", volatile=["write"])
'''


def measure() -> list[Row]:
    exchange, call = exchange_and_call()
    added = _seconds(lambda: compute(None))
    compared = _seconds(lambda: compute(np.full(NUMBERS, 50 * PARTIES)))
    return [
        Row(
            name=f"exchange of {LETTER_BYTES / 1000:g} kB messages, median",
            value=MILLISECONDS * exchange,
            unit="ms",
            baseline=MILLISECONDS * call,
            goal="≤ 20 ms on an idle machine",
        ),
        Row(name=f"sum of {NUMBERS:,} numbers", value=added, unit="s", baseline=added),
        Row(name=f"{NUMBERS:,} comparisons", value=compared, unit="s", baseline=added, goal="≤ 2.5 s"),
    ]


def exchange_and_call() -> tuple[float, float]:
    """Median seconds of an exchange, and of a call to the server."""
    with tempfile.TemporaryDirectory(prefix="winnow-bench-") as name, world(Path(name), SITES) as here:
        program = here.folder / "messages.py"
        program.write_text(PROGRAM)
        job = here.connection.submit(program, min_sites=SITES)
        job.wait(PATIENCE)
        (told,) = [line.text for line in job.lines(follow=False) if line.text.startswith('{"seconds"')]
        call = statistics.median(_timed(here.connection.status) for _ in range(EXCHANGES))
        return statistics.median(json.loads(told)["seconds"][WARM_UP:]), call


def compute(thresholds: NDArray[np.int64] | None) -> None:
    """All parties of a step, in this process."""
    step = SecureStep(digest=b"bench", owners=tuple(range(PARTIES)), length=NUMBERS, bits=32, thresholds=thresholds)
    parties = {me: StepParty(step, me, np.arange(NUMBERS) % 100) for me in step.owners}
    messages = {me: party.first_messages() for me, party in parties.items()}
    while any(messages.values()):
        arrived = {me: {other: own[me] for other, own in messages.items() if me in own} for me in parties}
        messages = {me: party.receive(arrived[me]) for me, party in parties.items()}
    total = PARTIES * (np.arange(NUMBERS) % 100)
    expected = total if thresholds is None else total >= thresholds
    assert all(np.array_equal(party.opened, expected) for party in parties.values())


def _seconds(work: Callable[[], object]) -> float:
    work()
    return min(_timed(work) for _ in range(REPEAT))


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
