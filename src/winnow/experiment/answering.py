"""Who answers a simulation's cohorts: this process, worker processes on this machine, or a Ray cluster."""

import socket
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError, Handler
from winnow.experiment.schema import EngineSettings
from winnow.learn.handlers import HANDLERS, LearningSite
from winnow.simulate import Crew, Processes, RayActors, WorkerPool, in_chunks

CHUNK = 2
"""Clients that a worker trains together unless told otherwise: few, so that a small cohort keeps all workers busy."""

SECONDS_TO_CONNECT = 5.0


def handlers_here(engine: EngineSettings, sizes: NDArray[np.int64]) -> Mapping[str, Handler[LearningSite]]:
    """The site's own handlers, in this process."""
    if engine.chunk is None:
        return HANDLERS
    return {name: in_chunks(handler, sizes, engine.chunk) for name, handler in HANDLERS.items()}


def open_pool(
    engine: EngineSettings, site: LearningSite, remake: Callable[[], LearningSite], sizes: NDArray[np.int64]
) -> WorkerPool | None:
    """The workers that the settings ask for, if any. Processes share this site, those elsewhere remake it."""
    if engine.workers == 0:
        return None
    if site.data.device.type == "cuda":
        raise ConfigError('engine.workers: workers compute on CPUs; write engine.device = "cpu" or engine.workers = 0')
    crew: Crew
    if engine.workers == "ray":
        _check_address(engine.ray_address)
        crew = RayActors(remake, HANDLERS, engine.ray_address)
        workers = crew.cores
    else:
        crew, workers = Processes(site, HANDLERS, engine.workers), engine.workers
    chunk = engine.chunk or CHUNK
    return WorkerPool(crew, names=HANDLERS, sizes=sizes, workers=workers, chunk=chunk, clock=time.monotonic)


def _check_address(address: str | None) -> None:
    """Ray itself takes minutes to find out that nobody is there."""
    host, _, port = (address or "").rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"engine.ray_address: nobody answers at {address} ({error}); is the cluster up?") from error
