"""A job's process, seen from the server: started, spoken with over a socketpair, and ended as a whole group."""

import asyncio
import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from winnow.deploy.fence.confine import Limits, Sandbox, environment
from winnow.deploy.fence.launch import RUNNER as RUNNER_MODULE
from winnow.deploy.fence.launch import Launch
from winnow.deploy.work.channel import Channel, ChannelClosedError
from winnow.deploy.work.orders import FromRunner, ToRunner

log = logging.getLogger(__name__)

RUNNER = (sys.executable, "-m", "winnow.deploy.work.runner")
"""The number of its end of the socketpair is added as the last argument."""
FENCED = (sys.executable, "-I", "-m", "winnow.deploy.fence.launch")
LOG_FILE = "runner.log"


def _walls(channel: int, limits: Limits, sandbox: Sandbox) -> bytes:
    return msgspec.json.encode(Launch(channel=channel, limits=limits, sandbox=sandbox, worker=RUNNER_MODULE))


class RunnerProcess:
    """One life of a runner. Two threads carry messages, so that neither side ever keeps the server waiting."""

    def __init__(
        self, command: Sequence[str], folder: Path, log_file: Path, fence: tuple[Limits, Sandbox] | None = None
    ) -> None:
        """A job that brings code of its own runs behind a `fence`; others as this command."""
        ours, theirs = socket.socketpair()
        with theirs, log_file.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
                FENCED if fence else [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment(folder, fence[0]) if fence else None,
                start_new_session=True,
            )
            self._instruct(b"" if fence is None else _walls(theirs.fileno(), *fence))
        self._line = ours
        self._channel: Channel[FromRunner] = Channel(ours, FromRunner)  # type: ignore[arg-type]
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[FromRunner | None] = asyncio.Queue()
        self._to_say: queue.SimpleQueue[ToRunner | None] = queue.SimpleQueue()
        for work in (self._listen, self._speak):
            threading.Thread(target=work, name=f"runner {self._process.pid}", daemon=True).start()

    def _instruct(self, walls: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as line:  # one that is dead is noticed later
            line.write(walls)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToRunner) -> None:
        self._to_say.put(message)

    async def receive(self) -> FromRunner | None:
        """What the runner says next; None once it has gone."""
        return await self._said.get()

    async def end(self, *, patience: float = 0.0) -> int:
        """Give the process so long to end by itself, then end it and all that it started; its exit status."""
        try:
            async with asyncio.timeout(patience):
                await asyncio.to_thread(self._process.wait, patience + 1.0)
        except (TimeoutError, subprocess.TimeoutExpired):
            log.debug("runner %d is killed", self.pid)
        self.kill()
        status = await asyncio.to_thread(self._process.wait)
        self._to_say.put(None)
        return status

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _listen(self) -> None:
        message: FromRunner | None
        while True:
            try:
                message = self._channel.receive()
            except ChannelClosedError:
                message = None
            except msgspec.MsgspecError as error:
                log.error("runner %d does not speak our language (%s): killed", self.pid, error)
                self.kill()
                message = None
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._said.put_nowait, message)
            if message is None:
                return

    def _speak(self) -> None:
        """Ends the connection too: only this thread knows that nothing is being sent."""
        with self._line:
            while (message := self._to_say.get()) is not None:
                try:
                    self._channel.send(message)
                except ChannelClosedError:
                    return
