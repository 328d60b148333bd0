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

from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.ipc_channel import Channel
from winnow.deploy.jobs.ipc_messages import (
    CommitRound,
    DispatchTask,
    JobFailed,
    JobFinished,
    PauseDeadlines,
    ResultArrived,
    RoundCommitted,
    RunnerLogLine,
    StartJob,
    ToRunner,
    WithdrawTasks,
)
from winnow.deploy.wire.messages import Blob, WireTask

ODD = "a line with \0 and \x1b[31m"


def task_for(begin: StartJob, number: int, clients: list[int], blob: Blob) -> WireTask:
    digest = sha256(f"{begin.job} {number} {clients} {blob.digest}".encode()).hexdigest()
    return WireTask(id=digest, name="train", clients=clients, round=number, version=number - 1, parts={"model": blob})


def first_time(fake: dict[str, Any], what: str, number: int) -> bool:
    """Whether it is to be done in this round, which is asked once for all lives."""
    if number != fake.get(what) or (mark := Path(fake["mark"])).exists():
        return False
    mark.touch()
    return True


def speak(channel: Channel[Any], begin: StartJob, fake: dict[str, Any]) -> None:
    """Whatever a job may print."""
    channel.send(RunnerLogLine(line=f"begins after round {begin.round}"))
    if "odd" in fake:
        channel.send(RunnerLogLine(line=ODD))
    for _ in range(fake.get("chatter", 0)):
        channel.send(RunnerLogLine(line="chatter"))
    for number in range(fake.get("fill_mb", 0)):
        (Path(begin.folder) / f"full-{number}").write_bytes(bytes(1 << 20))
        time.sleep(0.1 if number > 64 else 0)
    if "show_data" in fake:
        channel.send(RunnerLogLine(line=f"sees data {sorted(begin.data)}, password {os.environ.get('PGPASSWORD')}"))


def late_settling(asked: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first client of each site is settled at once, the others in the next round, in which their task ends."""
    settled: dict[str, dict[str, list[int]]] = {}
    ended_tasks: dict[str, list[str]] = {}
    for site, task in asked[-1]["tasks"].items():
        settled[site] = {task.id: task.clients[:1]}
    for site, task in asked[-2]["tasks"].items() if len(asked) > 1 else ():
        settled[site][task.id] = task.clients[1:]
        ended_tasks[site] = [task.id]
    return settled, ended_tasks


def ask_everybody(
    channel: Channel[Any], begin: StartJob, number: int, before: str, fake: dict[str, Any]
) -> dict[str, Any]:
    content = before.encode() or b"nothing"
    blob = Blob(digest=sha256(content).hexdigest(), size=len(content))
    (Path(begin.folder) / "blobs" / blob.digest).write_bytes(content)
    tasks = {}
    for member in begin.members:
        if member.site == fake.get("once") and number > 1:
            continue
        clients = [member.first_client + index for index in range(len(member.data.sizes))]
        task = task_for(begin, number, clients, blob)
        if number == fake.get("large_at"):
            task = msgspec.structs.replace(task, settings=b" " * (5 << 20))
        tasks[member.site] = task
        channel.send(DispatchTask(site=member.site, task=task))
    if first_time(fake, "withdraw_at", number):
        for site, task in tasks.items():
            channel.send(WithdrawTasks(site=site, tasks=[task.id]))
        time.sleep(0.3)  # the server hears it before the end
        os._exit(3)
    values = answers_to(channel, tasks)
    if "twice" in fake:
        for site, task in tasks.items():
            channel.send(DispatchTask(site=site, task=task))
        assert answers_to(channel, tasks) == values
    return {"tasks": tasks, "values": [values[client] for client in sorted(values)]}


def answers_to(channel: Channel[Any], tasks: dict[str, WireTask]) -> dict[int, str]:
    missing = {client for task in tasks.values() for client in task.clients}
    values = {}
    while missing:
        message = channel.receive()
        if isinstance(message, PauseDeadlines):
            continue
        assert isinstance(message, ResultArrived), message
        if message.result.task not in {task.id for task in tasks.values()}:
            continue
        values[message.result.client] = (
            f"failed: {message.result.failure}" if message.result.failure else Path(message.path or "").read_text()
        )
        missing.discard(message.result.client)
    return values


def main() -> None:
    channel: Channel[Any] = Channel(socket.socket(fileno=int(sys.argv[1])), ToRunner)  # type: ignore[arg-type]
    begin = channel.receive()
    assert isinstance(begin, StartJob)
    fake = read_bundle(Path(begin.bundle).read_bytes()).settings().get("fake", {})
    rounds = fake.get("rounds", 3)
    before = "" if begin.checkpoint is None else Path(begin.checkpoint).read_text()
    events = Path(begin.events or "").read_text().splitlines()
    assert len(events) == begin.round, "the events are those of the committed rounds"
    speak(channel, begin, fake)
    rounds_asked = []
    for number in range(begin.round + 1, rounds + 1):
        if number == fake.get("give_up_at"):
            channel.send(JobFailed(reason="it makes no sense" + (ODD if "odd" in fake else "")))
        if number == fake.get("die_at"):
            os._exit(3)
        if first_time(fake, "die_once_at", number):
            os._exit(3)
        asked = ask_everybody(channel, begin, number, before, fake)
        rounds_asked.append(asked)
        time.sleep(fake.get("pause", 0.0))
        before += f"{number}: {' '.join(asked['values'])}\n"
        path = Path(begin.folder) / "checkpoint-new"
        path.write_text(before)
        settled = {site: {task.id: task.clients} for site, task in asked["tasks"].items()}
        ended_tasks = {site: [task.id] for site, task in asked["tasks"].items()}
        if "late" in fake:
            settled, ended_tasks = late_settling(rounds_asked)
        line = msgspec.json.encode({"round": number}).decode()
        commit = CommitRound(
            round=number + fake.get("skip", 0),
            rounds=rounds,
            checkpoint=str(path),
            lines=[line],
            settled=settled,
            ended_tasks=ended_tasks,
            metrics={"server": {"round": float(number)}},
        )
        channel.send(commit)
        while not isinstance(channel.receive(), RoundCommitted):
            pass
    output = Path(begin.folder) / "model.txt"
    output.write_text(before)
    channel.send(JobFinished(output={fake.get("output", "model.txt"): str(output)}))
    channel.receive()


if __name__ == "__main__":
    main()
