"""The CPUs, memory and GPUs that a site offers, and which job has which of them."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from winnow.core.errors import WinnowError
from winnow.deploy.sandbox.isolation import MAX_FILE_MB, ProcessLimits
from winnow.deploy.wire.messages import Resources

MB = 1 << 20
UNITS = {"cpus": "CPUs", "memory_mb": "MB of memory", "gpus": "GPUs"}


class InsufficientResourcesError(WinnowError):
    """The job asks for more than this site offers, or has free."""


def machine_resources() -> Resources:
    """All CPUs that this process may use, most of the memory, and NVIDIA's GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MB
    gpus = sum(1 for each in Path("/dev").glob("nvidia[0-9]*"))
    return Resources(cpus=float(len(os.sched_getaffinity(0))), memory_mb=memory * 8 // 10, gpus=gpus)


class ResourcePool:
    """Allocates CPUs and GPUs by number, the least used first; jobs may share a CPU."""

    def __init__(self, offered: Resources, disk_mb: int = MAX_FILE_MB) -> None:
        """`disk_mb` is what each job may write."""
        self.offered, self._disk_mb = offered, disk_mb
        self._allocated: dict[str, tuple[Resources, ProcessLimits]] = {}
        self._lock = Lock()
        cpus = sorted(os.sched_getaffinity(0))
        first = os.getpid() % len(cpus)  # several agents on one machine must not all begin with the same one
        self._cpus = cpus[first:] + cpus[:first]

    def allocate(self, job: str, wanted: Resources) -> ProcessLimits:
        """What the job may use; the same if it asks again. Raises InsufficientResourcesError."""
        with self._lock:
            if job in self._allocated:
                return self._allocated[job][1]
            self._check(wanted, self.offered, "this site offers {:g}")
            self._check(wanted, self._free(), "this site has {:g} free now")
            limits = self._allocation(wanted)
            self._allocated[job] = (wanted, limits)
            return limits

    def release(self, job: str) -> None:
        with self._lock:
            self._allocated.pop(job, None)

    def free(self) -> Resources:
        with self._lock:
            return self._free()

    def _free(self) -> Resources:
        allocated = [resources for resources, _ in self._allocated.values()]
        return Resources(
            cpus=max(0.0, self.offered.cpus - math.fsum(each.cpus for each in allocated)),
            memory_mb=max(0, self.offered.memory_mb - sum(each.memory_mb for each in allocated)),
            gpus=max(0, self.offered.gpus - sum(each.gpus for each in allocated)),
        )

    def _allocation(self, wanted: Resources) -> ProcessLimits:
        cpus, gpus = self._users("cpus", self._cpus), self._users("gpus", range(self.offered.gpus))
        return ProcessLimits(
            memory_mb=wanted.memory_mb,
            cpus=sorted(sorted(cpus, key=lambda each: cpus[each])[: max(1, math.ceil(wanted.cpus))]),
            gpus=sorted(sorted(gpus, key=lambda each: (gpus[each], each))[: wanted.gpus]),
            disk_mb=self._disk_mb,
        )

    def _users(self, kind: str, numbers: "range | list[int]") -> Mapping[int, int]:
        return {each: sum(each in getattr(limits, kind) for _, limits in self._allocated.values()) for each in numbers}

    @staticmethod
    def _check(wanted: Resources, available: Resources, supply: str) -> None:
        for kind, unit in UNITS.items():
            asked, there = getattr(wanted, kind), getattr(available, kind)
            if asked > there:
                raise InsufficientResourcesError(f"the job asks for {asked:g} {unit}; {supply.format(there)}")
