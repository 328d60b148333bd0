"""Runs spread over processes. Each run has a folder of its own, so nothing that happens to a process loses one.

A worker takes one run after another and reports over its pipe. When it dies, its run has failed, the others go on, and
a new worker takes its place.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeAlias

from winnow.config.plugins import load_plugins
from winnow.config.schema import Experiment
from winnow.core import AnyEvent, ConfigError, ModelError, RoundFinished, WinnowError
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.experiment.run_folders import is_finished
from winnow.simulate.parent_watchdog import exit_with_parent

SECONDS_BETWEEN_MESSAGES = 0.2


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run to be made."""

    experiment: Experiment
    out: Path
    resume: bool
    data_directory: Path | None = None


@dataclass(frozen=True, kw_only=True)
class RunAdvanced:
    """A run has come this far."""

    round: int


@dataclass(frozen=True, kw_only=True)
class RunCompleted:
    """A run is done; its folder holds the result."""


@dataclass(frozen=True, kw_only=True)
class RunFailed:
    """A run failed; `incompatible` if it never started because settings, data and model do not go together."""

    reason: str
    incompatible: bool = False


RunMessage: TypeAlias = RunAdvanced | RunCompleted | RunFailed


class _Worker:
    """A process and the parent's end of its pipe."""

    def __init__(self, cores: Sequence[int], plugins: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(os.getpid(), theirs, tuple(cores), tuple(plugins)), daemon=True
        )
        try:
            with _interrupts_ignored():
                self.process.start()
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()
        self.run_index: int | None = None

    def send_run(self, index: int, spec: RunSpec) -> None:
        self.run_index = index
        self.pipe.send(spec)

    def next_message(self) -> RunMessage:
        """The next message; for a worker that died, that its run failed."""
        try:
            message: RunMessage = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return RunFailed(
                reason=f"the worker process ended unexpectedly ({_exit_description(self.process.exitcode)})"
            )
        return message

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def run_all(specs: Sequence[RunSpec], workers: int) -> Iterator[tuple[int, RunMessage]]:
    """Make all runs, so many at a time, and say for each (by its place) how it goes. Closing it stops the workers."""
    waiting = deque(range(len(specs)))
    running: list[_Worker] = []
    shares, started = _shares(workers), 0
    plugins = list(dict.fromkeys(file for spec in specs for file in spec.experiment.plugins))
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Worker(shares[started % workers], plugins))
                started += 1
                _send_next(running[-1], waiting, specs)
            ready = wait([worker.pipe for worker in running])
            for worker in [each for each in running if each.pipe in ready]:
                assert worker.run_index is not None
                message = worker.next_message()
                yield worker.run_index, message
                if isinstance(message, RunAdvanced):
                    continue
                if waiting and worker.process.is_alive():
                    _send_next(worker, waiting, specs)
                else:
                    worker.stop()
                    running.remove(worker)
    finally:
        for worker in running:
            worker.stop()


def _send_next(worker: _Worker, waiting: deque[int], specs: Sequence[RunSpec]) -> None:
    index = waiting.popleft()
    worker.send_run(index, specs[index])


def _shares(workers: int) -> list[list[int]]:
    """The cores split over the workers, so that runs which use several do not crowd each other."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [cores[place % max(1, len(cores)) :: workers] for place in range(workers)]


def _serve(parent: int, pipe: Connection, cores: Sequence[int], plugins: Sequence[str]) -> None:
    """Serve runs on a share of the cores until the parent sends no more.

    Plugins come first: without what they define, no run that uses it could be read.
    """
    exit_with_parent(parent)
    if cores:
        os.sched_setaffinity(0, cores)
    load_plugins(plugins, "a worker")
    while True:
        try:
            spec = pipe.recv()
        except EOFError:
            return
        pipe.send(_execute_run(spec, pipe))


def _execute_run(spec: RunSpec, pipe: Connection) -> RunMessage:
    try:
        if spec.resume and is_finished(spec.out, spec.experiment):
            return RunCompleted()
        run_experiment(
            spec.experiment,
            inputs=RunInputs(data_directory=spec.data_directory),
            out=spec.out,
            resume=spec.resume,
            report=False,
            on_event=_reporter(pipe),
        )
    except WinnowError as error:
        return RunFailed(reason=str(error), incompatible=isinstance(error, ConfigError | ModelError))
    except Exception as error:  # a bug: its traceback is for the developers, and the other runs go on
        traceback.print_exc()
        return RunFailed(reason=f"{type(error).__name__}: {error}".splitlines()[0])
    return RunCompleted()


def _reporter(pipe: Connection) -> Callable[[AnyEvent], None]:
    """Reports the progress of the run to the parent now and then; ends the process if there is no parent any more."""
    last = 0.0

    def report(event: AnyEvent) -> None:
        nonlocal last
        if not isinstance(event, RoundFinished) or time.monotonic() - last < SECONDS_BETWEEN_MESSAGES:
            return
        last = time.monotonic()
        try:
            pipe.send(RunAdvanced(round=event.round))
        except BrokenPipeError:
            os._exit(1)

    return report


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started meanwhile never sees Ctrl-C: the parent decides what becomes of it."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _exit_description(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    return f"killed by {signal.Signals(-exitcode).name}"
