"""A runner without any learning: every round asks each client of each site once and folds the answers into a chain.

What it does is said in the [fake] table of the job's configuration. The checkpoint is a text of all rounds so far, so
that an interrupted job's last checkpoint shows whether any round was lost, repeated or fed with other answers.
"""

import os
import socket
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from winnow.deploy.wire.messages import Blob, WireTask
from winnow.deploy.work.bundle import read_bundle
from winnow.deploy.work.channel import Channel
from winnow.deploy.work.orders import Answered, Begin, Commit, Committed, Dispatch, Finished, GaveUp, Said, ToRunner


def task_for(begin: Begin, number: int, clients: list[int], blob: Blob) -> WireTask:
    digest = sha256(f"{begin.job} {number} {clients} {blob.digest}".encode()).hexdigest()
    return WireTask(id=digest, name="train", clients=clients, round=number, version=number - 1, parts={"model": blob})


def ask_everybody(channel: Channel[Any], begin: Begin, number: int, before: str) -> dict[str, Any]:
    content = before.encode() or b"nothing"
    blob = Blob(digest=sha256(content).hexdigest(), size=len(content))
    (Path(begin.folder) / "blobs" / blob.digest).write_bytes(content)
    tasks = {}
    for member in begin.members:
        clients = [member.clients_from + index for index in range(len(member.data.sizes))]
        tasks[member.site] = task_for(begin, number, clients, blob)
        channel.send(Dispatch(site=member.site, task=tasks[member.site]))
    missing = {client for task in tasks.values() for client in task.clients}
    values = {}
    while missing:
        message = channel.receive()
        assert isinstance(message, Answered), message
        if message.answer.task not in {task.id for task in tasks.values()}:
            continue
        values[message.answer.client] = (
            f"failed: {message.answer.failure}" if message.answer.failure else Path(message.path or "").read_text()
        )
        missing.discard(message.answer.client)
    return {"tasks": tasks, "values": [values[client] for client in sorted(values)]}


def main() -> None:
    channel: Channel[Any] = Channel(socket.socket(fileno=int(sys.argv[1])), ToRunner)  # type: ignore[arg-type]
    begin = channel.receive()
    assert isinstance(begin, Begin)
    fake = read_bundle(Path(begin.bundle).read_bytes()).settings().get("fake", {})
    rounds = fake.get("rounds", 3)
    before = "" if begin.checkpoint is None else Path(begin.checkpoint).read_text()
    events = Path(begin.events or "").read_text().splitlines()
    assert len(events) == begin.round, "the events are those of the committed rounds"
    channel.send(Said(line=f"begins after round {begin.round}"))
    for number in range(begin.round + 1, rounds + 1):
        if number == fake.get("give_up_at"):
            channel.send(GaveUp(reason="it makes no sense"))
        if number == fake.get("die_at"):
            os._exit(3)
        if number == fake.get("die_once_at") and not (mark := Path(fake["mark"])).exists():
            mark.touch()
            os._exit(3)
        asked = ask_everybody(channel, begin, number, before)
        time.sleep(fake.get("pause", 0.0))
        before += f"{number}: {' '.join(asked['values'])}\n"
        path = Path(begin.folder) / "checkpoint-new"
        path.write_text(before)
        settled = {site: {task.id: task.clients} for site, task in asked["tasks"].items()}
        line = msgspec.json.encode({"round": number}).decode()
        commit = Commit(
            round=number + fake.get("skip", 0),
            rounds=rounds,
            checkpoint=str(path),
            lines=[line],
            settled=settled,
            metrics={"server": {"round": float(number)}},
        )
        channel.send(commit)
        while not isinstance(channel.receive(), Committed):
            pass
    output = Path(begin.folder) / "model.txt"
    output.write_text(before)
    channel.send(Finished(output={"model.txt": str(output)}))
    channel.receive()


if __name__ == "__main__":
    main()
