"""Who answers a simulation's cohorts: this process, worker processes on this machine, or a Ray cluster."""

import socket
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from winnow.config.schema import EngineSettings
from winnow.core import ConfigError, Handler
from winnow.learn.handlers import HANDLERS
from winnow.learn.learning_site import LearningSite
from winnow.simulate import ForkedWorkers, RayWorkers, WorkerBackend, WorkerPool, handle_in_chunks

DEFAULT_CHUNK = 2
"""Clients that a worker trains together unless told otherwise: few, so that a small cohort keeps all workers busy."""

RAY_CONNECT_SECONDS = 5.0


def local_handlers(engine: EngineSettings, sizes: NDArray[np.int64]) -> Mapping[str, Handler[LearningSite]]:
    """The site's own handlers, in this process."""
    if engine.chunk is None:
        return HANDLERS
    return {name: handle_in_chunks(handler, sizes, engine.chunk) for name, handler in HANDLERS.items()}


def open_worker_pool(
    engine: EngineSettings, site: LearningSite, remake: Callable[[], LearningSite], sizes: NDArray[np.int64]
) -> WorkerPool | None:
    """The workers that the settings ask for, if any. Processes share this site, those elsewhere remake it."""
    if engine.workers == 0:
        return None
    if site.data.device.type == "cuda":
        raise ConfigError(
            'engine.workers: worker processes run on CPUs only; set engine.device = "cpu" or engine.workers = 0'
        )
    backend: WorkerBackend
    if engine.workers == "ray":
        _check_address(engine.ray_address)
        backend = RayWorkers(remake, HANDLERS, engine.ray_address)
        workers = backend.cores
    else:
        backend, workers = ForkedWorkers(site, HANDLERS, engine.workers), engine.workers
    chunk = engine.chunk or DEFAULT_CHUNK
    return WorkerPool(backend, names=HANDLERS, sizes=sizes, workers=workers, chunk=chunk, clock=time.monotonic)


def _check_address(address: str | None) -> None:
    """Ray itself takes minutes to find out that nobody is there."""
    host, _, port = (address or "").rpartition("//")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=RAY_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"engine.ray_address: cannot connect to {address} ({error}); check that the Ray cluster is running"
        ) from error
