"""A job's process for tests of the agent: quick to start, and as odd as its tasks ask it to be. Run by its path."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.ipc_channel import Channel
from winnow.deploy.jobs.ipc_messages import (
    AssignClientNumbers,
    CannotRunJob,
    FilterResult,
    JobReady,
    PrepareJob,
    ReleaseRequest,
    RunTask,
    SignRequest,
    StopWorker,
    TaskResult,
    ToWorker,
    WorkerLogLine,
)
from winnow.deploy.wire.messages import ClientResult, DataDescription


def written(folder: Path, name: str, content: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


def counted(folder: Path) -> int:
    """How many answers this folder's processes have made."""
    path = folder / "count"
    count = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(count))
    return count


class Worker:
    def __init__(self, channel: Channel[Any], prepare: PrepareJob) -> None:
        self.channel, self.prepare = channel, prepare
        self.folder = Path(prepare.folder)
        self.first = prepare.first_client

    def run(self) -> None:
        while True:
            message = self.channel.receive()
            if isinstance(message, StopWorker):
                return
            if isinstance(message, AssignClientNumbers):
                self.first = message.first_client
            elif isinstance(message, FilterResult):
                self.screen(message)
            else:
                for client in message.task.clients:
                    self.do(message, client)

    def do(self, order: RunTask, client: int) -> None:
        settings = json.loads(order.task.settings)
        answer = ClientResult(job=self.prepare.job, task=order.task.id, client=client)
        getattr(self, order.task.name.replace("-", "_"))(order, answer, settings)

    def echo(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        client = answer.client
        kept = (
            json.loads(Path(order.client_state[client]).read_text()) if client in order.client_state else {"rounds": []}
        )
        seen = {
            "count": counted(self.folder),
            "client": client,
            "kept": kept["rounds"],
            "first": self.first,
            "parts": {name: Path(path).read_text() for name, path in order.parts.items()},
            "filters": self.prepare.filters,
        }
        self.channel.send(
            TaskResult(
                result=answer,
                payload=written(self.folder, f"out-{client}", seen),
                new_client_state=written(
                    self.folder, f"keep-{client}", {"rounds": [*kept["rounds"], order.task.round]}
                ),
                volatile=settings == "volatile",
            )
        )

    def certify(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        """Has its agent sign for the client that it is told to, and let an update out."""
        self.channel.send(SignRequest(client=settings, content=b"said"))
        signed = self.channel.receive()
        self.channel.send(ReleaseRequest(client=answer.client))
        seen = {
            "signature": signed.signature.hex(),
            "refused": signed.refused,
            "first": self.channel.receive().times > 0,
            "parties": {each.site: [each.first_client, each.client_count, each.key.hex()] for each in order.site_keys},
        }
        self.channel.send(TaskResult(result=answer, payload=written(self.folder, "certified", seen), volatile=True))

    def slow(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        time.sleep(settings)
        self.echo(order, answer, None)

    def die(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        deaths = self.folder / "deaths"
        so_far = int(deaths.read_text()) if deaths.exists() else 0
        if so_far < settings:
            deaths.write_text(str(so_far + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        self.echo(order, answer, None)

    def talk(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        """Tells all it knows of where it is."""
        self.channel.send(WorkerLogLine(line=f"reading {self.prepare.data}"))
        here = f"{self.prepare.data} in {self.folder}"
        import msgspec

        self.channel.send(
            TaskResult(result=msgspec.structs.replace(answer, failure=f"no such column in {here}", stage=here))
        )

    def flood(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        """Notes more for the site's log than anybody will read."""
        for _ in range(settings):
            self.channel.send(WorkerLogLine(line="flooded" + 10_000 * "x"))
        self.echo(order, answer, None)

    def fill(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        """Writes many files, which it deletes at once if it is told to, and keeps them open."""
        files = []
        for number in range(settings["files"]):
            files.append((self.folder / f"full-{number}").open("wb"))
            files[-1].write(os.urandom(1 << 20))
            files[-1].flush()
            if settings["deleted"]:
                (self.folder / f"full-{number}").unlink()
        time.sleep(settings["then"])
        self.echo(order, answer, None)

    def hand_over(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        """A file that it may not hand over: one by its path, or a link to it."""
        target = settings["path"]
        if settings["how"] == "link":
            target = str(self.folder / "link")
            Path(target).symlink_to(settings["path"])
        if settings["how"] == "folder":
            (self.folder / "deep").symlink_to(Path(settings["path"]).parent)
            target = str(self.folder / "deep" / Path(settings["path"]).name)
        self.channel.send(TaskResult(result=answer, payload=target))

    def messages(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        import msgspec

        got = {sender: plain.decode() for sender, plain in order.task.peer_messages.get(answer.client, {}).items()}
        sent = {int(to): text.encode() for to, text in (settings or {}).items()}
        answer = msgspec.structs.replace(answer, peer_messages=sent)
        self.channel.send(TaskResult(result=answer, payload=written(self.folder, f"out-{answer.client}", got)))

    def nonsense(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        self.channel._socket.sendall(b"\x05\x00\x00\x00hello")
        time.sleep(30)

    def attempt(self, order: RunTask, answer: ClientResult, settings: Any) -> None:
        """Code of a stranger: each line of it succeeds (1) or not (0)."""
        import msgspec

        metrics = {}
        for name, code in settings.items():
            try:
                exec(code, {"agent": os.getppid(), "folder": str(self.folder)})
                metrics[name] = 1.0
            except BaseException:
                metrics[name] = 0.0
        self.channel.send(TaskResult(result=msgspec.structs.replace(answer, metrics=metrics)))

    def screen(self, message: FilterResult) -> None:
        import msgspec

        did = message.result
        content = json.loads(Path(did.payload).read_text()) if did.payload else {}
        answer = msgspec.structs.replace(did.result, metrics={"screened": 1.0})
        seen = {**content, "screened": self.prepare.filters, "folder": self.folder.name}
        self.channel.send(msgspec.structs.replace(did, result=answer, payload=written(self.folder, "screened", seen)))


def main() -> None:
    channel: Channel[Any] = Channel(socket.socket(fileno=int(sys.argv[1])), ToWorker)
    prepare = channel.receive()
    assert isinstance(prepare, PrepareJob)
    bundle = read_bundle(Path(prepare.bundle).read_bytes())
    runs_own_code = Path(prepare.folder).name == "work"
    if "cannot" in bundle.config and runs_own_code:
        channel.send(CannotRunJob(reason=f"no column 'flow' in {prepare.data}"))
        return
    rows = len(Path(prepare.data["file"]).read_text().splitlines()) - 1 if prepare.data else 0
    if "lies" in bundle.config and runs_own_code:
        rows = 4711
    channel.send(JobReady(data=DataDescription(sizes=[rows] * 2)))
    Worker(channel, prepare).run()


if __name__ == "__main__":
    main()
