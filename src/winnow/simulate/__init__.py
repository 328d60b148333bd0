"""Federations on virtual time, and who does their work: this process, worker processes, or a Ray cluster."""

from winnow.simulate.chunks import in_chunks
from winnow.simulate.crew import Crew
from winnow.simulate.federation import InProcess, InProcessExchange
from winnow.simulate.pool import WorkerPool
from winnow.simulate.ray_cluster import RayActors
from winnow.simulate.workers import Processes

__all__ = ["Crew", "InProcess", "InProcessExchange", "Processes", "RayActors", "WorkerPool", "in_chunks"]
