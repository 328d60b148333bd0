"""A job's process, seen from the server: started, spoken with over a socketpair, and ended as a whole group."""

import asyncio
import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from winnow.deploy.jobs.ipc import FromRunner, ToRunner
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, InvalidMessageError
from winnow.deploy.sandbox.disk_quota import DiskQuotaMonitor
from winnow.deploy.sandbox.isolation import MB, ProcessLimits, Sandbox, environment
from winnow.deploy.sandbox.launch import RUNNER_MODULE, LaunchEnvironment, LaunchSpec
from winnow.deploy.server.warm_runner import IdleRunner

log = logging.getLogger(__name__)

RUNNER_LOG = "runner.log"
MAX_UNREAD_MESSAGES = 16
"""Messages of a runner that may wait; one that says more is not listened to until they are heard."""
POLL_SECONDS = 0.5


class RunnerProcess:
    """One life of a runner. Two threads carry messages, so that neither side ever keeps the server waiting."""

    def __init__(
        self,
        folder: Path,
        log_file: Path,
        *,
        limits: ProcessLimits,
        sandbox: Sandbox | None,
        worker: str = RUNNER_MODULE,
        start: Callable[[], IdleRunner] = IdleRunner,
    ) -> None:
        """A job that brings code of its own runs in a `sandbox`."""
        fresh = start()
        place = LaunchEnvironment(folder=str(folder), log=str(log_file), environment=environment(folder, limits))
        fresh.instruct(LaunchSpec(channel=fresh.channel, limits=limits, sandbox=sandbox, worker=worker, place=place))
        self._process, self._line = fresh.process, fresh.line
        self._watch = DiskQuotaMonitor(self._process, [folder, log_file], limits.disk_mb * MB, self.kill)
        self._watch.start()
        self._channel: Channel[FromRunner] = Channel(self._line, FromRunner)  # type: ignore[arg-type]
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[FromRunner | None] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_UNREAD_MESSAGES)
        self._ended = False
        self._to_say: queue.SimpleQueue[ToRunner | None] = queue.SimpleQueue()
        for work in (self._listen, self._speak):
            threading.Thread(target=work, name=f"runner {self._process.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def wrote_too_much(self) -> bool:
        """Whether it was ended for what it has written."""
        return self._watch.exceeded

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
        self._watch.stop()
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
            except InvalidMessageError as error:
                log.error("runner %d is killed: %s", self.pid, error)
                self.kill()
                message = None
            while not self._room.acquire(timeout=POLL_SECONDS):
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
