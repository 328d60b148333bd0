"""Letters between owners: an exchange among three sites, a sum of 1,000 numbers and 1,000 comparisons of five parties.

The exchange goes the way of a deployed job: server, agents, runner and workers as processes, gRPC with TLS, each letter
sealed for its addressee; nothing is committed between two exchanges. Its baseline is one plain call over the same link.
Sums and comparisons are computed in this process, all parties in turn; their baseline is the time of one party.
"""

import json
import statistics
import tempfile
from pathlib import Path

from bench.deploy.world import world
from bench.table import Row

SITES, LETTER_BYTES, EXCHANGES, WARM_UP = 3, 1_000, 200, 20
NUMBERS = 1_000
PATIENCE = 300

PROGRAM = f'''
import json, os, time

import numpy as np

import winnow
from winnow.core import Reply, RoundFinished, Snapshot, Task
from winnow.core.broadcast_and_relay import peer_messages, wait


def write(tasks, holdings):
    """A letter to every other client, and one read of each."""
    assert all(len(letter) == {LETTER_BYTES} for task in tasks for letter in task.peer_messages.values())
    others = lambda task: [client for client in range({SITES}) if client != task.client]
    return [Reply(task=task, peer_messages={{to: os.urandom({LETTER_BYTES}) for to in others(task)}}) for task in tasks]


class Letters:
    """Exchanges of letters within one round."""

    def run(self, federation):
        letters, moments = {{}}, []
        for number in range({EXCHANGES + WARM_UP}):
            begun = time.perf_counter()
            tasks = [
                Task(name="write", client=client, round=1, version=0, settings=number, peer_messages=letters.get(client, {{}}))
                for client in range({SITES})
            ]
            replies = wait(federation.dispatch(tasks))
            assert all(isinstance(reply, Reply) for reply in replies), replies
            letters = peer_messages(replies)
            moments.append(time.perf_counter() - begun)
        print(json.dumps(moments))
        yield RoundFinished(round=1, at=federation.clock.now, version=1, metrics={{}}, aggregated=np.arange({SITES}))

    def snapshot(self):
        return Snapshot(arrays={{}}, values={{}})

    def restore(self, snapshot):
        pass


winnow.run_workflow(Letters(), {{"write": write}}, data="numbers", volatile=["write"])
'''


def measure() -> list[Row]:
    moments = exchanges()
    return [Row(name="exchange, median", value=1000 * statistics.median(moments), unit="ms", baseline=1)]


def exchanges() -> list[float]:
    with tempfile.TemporaryDirectory(prefix="winnow-bench-") as name, world(Path(name), SITES) as here:
        program = here.folder / "letters.py"
        program.write_text(PROGRAM)
        job = here.connection.submit(program, min_sites=SITES)
        job.wait(PATIENCE)
        (line,) = [line.text for line in job.lines(follow=False) if line.text.startswith("[0.")]
        return json.loads(line)[WARM_UP:]
