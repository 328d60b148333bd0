"""Worker processes on this machine: one thread each, on cores of their own.

Workers are forked, so they have the site, its data and any code that defined them without a copy, and start at once.
Arrays go through shared memory, the rest through a pipe: a cohort's model is written once for all workers.
"""

import contextlib
import os
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Generic, NamedTuple, TypeVar

import torch

from winnow.core import ConfigError, Handler, Outcome, Task
from winnow.simulate.cohort_chunks import Indices
from winnow.simulate.out_of_band_pickling import PickledValue, pack, unpack
from winnow.simulate.parent_watchdog import exit_with_parent
from winnow.simulate.shared_memory import SharedMemoryBlock
from winnow.simulate.worker_backend import ChunkFinished, WorkerEvent, WorkerFailure, WorkerLost, WorkerReady

Site = TypeVar("Site")


class _SharedPickle(NamedTuple):
    """A parcel whose contents are in a shared block."""

    head: bytes
    lengths: list[int]


class _ChunkRequest(NamedTuple):
    """Answer these of the cohort's tasks. The cohort comes with a worker's first order."""

    cohort: _SharedPickle | None
    chunk: Indices


@dataclass(kw_only=True)
class _Process:
    pid: int
    pipe: "Connection[_ChunkRequest, _SharedPickle | WorkerFailure | None]"
    block: SharedMemoryBlock
    briefed: bool = False


class ForkedWorkers(Generic[Site]):
    """A backend of forked processes that answer by these handlers for this site."""

    def __init__(self, site: Site, handlers: Mapping[str, Handler[Site]], workers: int) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError("engine.workers: this system cannot fork processes; write 0")
        self._site, self._handlers, self._workers = site, handlers, workers
        self._cohort_block = SharedMemoryBlock()
        self._cohort: _SharedPickle | None = None
        self._tasks: Sequence[Task] = ()
        self._processes: dict[int, _Process] = {}

    @property
    def processes(self) -> dict[int, int]:
        return {worker: process.pid for worker, process in self._processes.items()}

    def start(self, worker: int) -> None:
        ours, theirs = Pipe()
        block = SharedMemoryBlock()
        parent = os.getpid()
        with _interrupts_held_back():
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                theirs.close()
                block.close()
                raise
            if pid == 0:
                self._worker_main(
                    parent,
                    worker,
                    theirs,
                    block,
                    (ours, *(process.pipe for process in self._processes.values())),
                )
        theirs.close()
        self._processes[worker] = _Process(pid=pid, pipe=ours, block=block)

    def set_cohort(self, tasks: Sequence[Task]) -> None:
        parcel = pack(tasks)
        self._tasks = tasks
        self._cohort = _SharedPickle(parcel.head, self._cohort_block.write(parcel.contents))
        for process in self._processes.values():
            process.briefed = False

    def submit(self, worker: int, chunk: Indices) -> None:
        process = self._processes[worker]
        with contextlib.suppress(OSError):  # a process that is gone becomes known as the end of its pipe
            process.pipe.send(_ChunkRequest(None if process.briefed else self._cohort, chunk))
        process.briefed = True

    def next_event(self) -> WorkerEvent:
        ready = wait([process.pipe for process in self._processes.values()])
        worker = next(worker for worker, process in self._processes.items() if process.pipe in ready)
        process = self._processes[worker]
        try:
            message = process.pipe.recv()
        except (EOFError, OSError):
            return WorkerLost(worker, self._end(worker))
        if message is None:
            return WorkerReady(worker)
        if isinstance(message, WorkerFailure):
            raise message.exception()
        parcel = PickledValue(message.head, process.block.read(message.lengths))
        return ChunkFinished(worker, unpack(parcel, known=self._tasks))

    def stop_all(self) -> None:
        for worker in list(self._processes):
            self._end(worker)
        self._cohort_block.close()

    def _end(self, worker: int) -> str:
        """Make sure that a process is gone; says how it ended."""
        process = self._processes.pop(worker)
        process.pipe.close()
        process.block.close()
        os.kill(process.pid, signal.SIGKILL)
        return _exit_text(os.waitpid(process.pid, 0)[1])

    # In the worker ----------------------------------------------------------------------------------------------------

    def _worker_main(
        self, parent: int, worker: int, pipe: Connection, block: SharedMemoryBlock, not_ours: Sequence[Connection]
    ) -> None:
        """A worker's whole life. It never returns into the program that it was forked from."""
        try:
            exit_with_parent(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
            for other in not_ours:
                other.close()
            _pin_to_cores(worker, self._workers)
            self._serve(pipe, block)
        except (EOFError, ConnectionError):
            os._exit(0)  # the parent is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _serve(self, pipe: Connection, block: SharedMemoryBlock) -> None:
        pipe.send(None)
        tasks: Sequence[Task] = ()
        while True:
            order: _ChunkRequest = pipe.recv()
            if order.cohort is not None:
                tasks = unpack(PickledValue(order.cohort.head, self._cohort_block.read(order.cohort.lengths)))
            try:
                parcel = pack(self._outcomes([tasks[i] for i in order.chunk]), known=tasks)
            except Exception as error:
                pipe.send(WorkerFailure.from_exception(error))
            else:
                pipe.send(_SharedPickle(parcel.head, block.write(parcel.contents)))

    def _outcomes(self, tasks: Sequence[Task]) -> Sequence[Outcome]:
        return self._handlers[tasks[0].name](tasks, self._site)


def _pin_to_cores(worker: int, workers: int) -> None:
    """One thread, on this worker's share of the cores that we may use."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[worker::workers] or [cores[worker % len(cores)]])


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits until a new process knows that it is none of its business."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_text(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
