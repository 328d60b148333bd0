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
from pathlib import Path

import msgspec

from winnow.deploy.fence.confine import Limits, Sandbox, environment
from winnow.deploy.fence.launch import RUNNER, Launch
from winnow.deploy.work.channel import Channel, ChannelClosedError, GarbledError
from winnow.deploy.work.orders import FromRunner, ToRunner

log = logging.getLogger(__name__)

LOG_FILE = "runner.log"
UNHEARD = 16
"""Messages of a runner that may wait; one that says more is not listened to until they are heard."""
TICK = 0.5


class RunnerProcess:
    """One life of a runner. Two threads carry messages, so that neither side ever keeps the server waiting."""

    def __init__(
        self, folder: Path, log_file: Path, *, limits: Limits, sandbox: Sandbox | None, worker: str = RUNNER
    ) -> None:
        """A job that brings code of its own runs in a `sandbox`. No job sees the environment of the server, which may
        hold its database's password.
        """
        ours, theirs = socket.socketpair()
        launch = Launch(channel=theirs.fileno(), limits=limits, sandbox=sandbox, worker=worker)
        with theirs, log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", "winnow.deploy.fence.launch"],
                pass_fds=(theirs.fileno(),),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment(folder, limits),
                start_new_session=True,
            )
            self._instruct(msgspec.json.encode(launch))
        self._line = ours
        self._channel: Channel[FromRunner] = Channel(ours, FromRunner)  # type: ignore[arg-type]
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[FromRunner | None] = asyncio.Queue()
        self._room = threading.Semaphore(UNHEARD)
        self._ended = False
        self._to_say: queue.SimpleQueue[ToRunner | None] = queue.SimpleQueue()
        for work in (self._listen, self._speak):
            threading.Thread(target=work, name=f"runner {self._process.pid}", daemon=True).start()

    def _instruct(self, launch: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as line:  # one that is dead is noticed later
            line.write(launch)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToRunner) -> None:
        self._to_say.put(message)

    async def receive(self) -> FromRunner | None:
        """What the runner says next; None once it has gone."""
        message = await self._said.get()
        self._room.release()
        return message

    async def end(self, *, patience: float = 0.0) -> int:
        """Give the process so long to end by itself, then end it and all that it started; its exit status."""
        try:
            async with asyncio.timeout(patience):
                await asyncio.to_thread(self._process.wait, patience + 1.0)
        except (TimeoutError, subprocess.TimeoutExpired):
            log.debug("runner %d is killed", self.pid)
        self.kill()
        status = await asyncio.to_thread(self._process.wait)
        self._ended = True
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
            except GarbledError as error:
                log.error("runner %d is killed: %s", self.pid, error)
                self.kill()
                message = None
            while not self._room.acquire(timeout=TICK):
                if self._ended:
                    return
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
