"""A job's process at the server: messages pass through queues, so that the event loop never waits for it."""

import asyncio
import contextlib
import logging
import queue
import socket
import subprocess
import threading
from pathlib import Path

from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, InvalidMessageError
from winnow.deploy.jobs.ipc_messages import FromRunner, ToRunner
from winnow.deploy.sandbox.isolation import ProcessLimits, Sandbox
from winnow.deploy.sandbox.job_process import JobProcess, Launch, start_new

log = logging.getLogger(__name__)

RUNNER_LOG = "runner.log"
MAX_UNREAD_MESSAGES = 16
"""Messages of a runner that may wait to be handled; while there are as many, no more are read."""
POLL_SECONDS = 0.5


class RunnerProcess:
    """One run of a runner. Two threads carry its messages."""

    def __init__(
        self,
        folder: Path,
        log_file: Path,
        *,
        limits: ProcessLimits,
        sandbox: Sandbox | None,
        program: str,
        launch: Launch = start_new,
    ) -> None:
        self._process = JobProcess(
            folder=folder, log=log_file, limits=limits, sandbox=sandbox, program=program, launch=launch
        )
        self._channel: Channel[FromRunner] = Channel(self._process.socket, FromRunner)  # type: ignore[arg-type]
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[FromRunner | None] = asyncio.Queue()
        self._slots = threading.Semaphore(MAX_UNREAD_MESSAGES)
        self._ended = False
        self._outgoing: queue.SimpleQueue[ToRunner | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=f"runner {self.pid}", daemon=True)
            for work in (self._receive_loop, self._send_loop)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exceeded_disk(self) -> bool:
        """Whether it was ended because of what it wrote."""
        return self._process.exceeded_disk

    def send(self, message: ToRunner) -> None:
        self._outgoing.put(message)

    async def receive(self) -> FromRunner | None:
        """The runner's next message; None once it has gone."""
        message = await self._received.get()
        self._slots.release()
        return message

    async def end(self, *, timeout: float = 0.0) -> int:
        """Give the process `timeout` seconds to exit, then end it and all that it started. Return its exit status.

        May be called twice, and after it has exited.
        """
        try:
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.to_thread(self._process.wait, timeout + 1.0)
            except (TimeoutError, subprocess.TimeoutExpired):
                log.debug("killing runner process %d", self.pid)
            status = await asyncio.to_thread(self._process.end)
        finally:  # also if this is cancelled: the threads end, and the last one closes the connection
            self._process.kill()
            self._ended = True
            self._outgoing.put(None)
            with contextlib.suppress(OSError):  # closed already
                self._process.socket.shutdown(socket.SHUT_RDWR)  # another process may hold the other end
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        return status

    def kill(self) -> None:
        self._process.kill()

    def _receive_loop(self) -> None:
        message: FromRunner | None
        while True:
            try:
                message = self._channel.receive()
            except ChannelClosedError:
                message = None
            except InvalidMessageError as error:
                log.error("killing runner process %d: %s", self.pid, error)
                self.kill()
                message = None
            while not self._slots.acquire(timeout=POLL_SECONDS):
                if self._ended:
                    return
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for messages any more
                self._loop.call_soon_threadsafe(self._received.put_nowait, message)
            if message is None:
                return

    def _send_loop(self) -> None:
        """Closes the connection too: only this thread knows that nothing is being sent."""
        with contextlib.closing(self._channel):
            while (message := self._outgoing.get()) is not None:
                try:
                    self._channel.send(message)
                except ChannelClosedError:
                    return
