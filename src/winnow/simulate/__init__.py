"""Federations on virtual time, and who does their work: this process, worker processes, or a Ray cluster."""

from winnow.simulate.cohort_chunks import handle_in_chunks
from winnow.simulate.federation import SimulatedExchange, SimulatedFederation
from winnow.simulate.forked_workers import ForkedWorkers
from winnow.simulate.ray_workers import RayWorkers
from winnow.simulate.worker_backend import WorkerBackend
from winnow.simulate.worker_pool import WorkerPool

__all__ = [
    "ForkedWorkers",
    "RayWorkers",
    "SimulatedExchange",
    "SimulatedFederation",
    "WorkerBackend",
    "WorkerPool",
    "handle_in_chunks",
]
