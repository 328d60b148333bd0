"""Federations on virtual time, and who does their work: this process, worker processes, or a Ray cluster.

Worker processes are imported on first use: what trains no model needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from winnow.simulate.federation import SimulatedExchange, SimulatedFederation

if TYPE_CHECKING:
    from winnow.simulate.cohort_chunks import handle_in_chunks
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

_HOMES = {
    "ForkedWorkers": "forked_workers",
    "RayWorkers": "ray_workers",
    "WorkerBackend": "worker_backend",
    "WorkerPool": "worker_pool",
    "handle_in_chunks": "cohort_chunks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'winnow.simulate' has no attribute {name!r}")
    return getattr(import_module(f"winnow.simulate.{_HOMES[name]}"), name)
