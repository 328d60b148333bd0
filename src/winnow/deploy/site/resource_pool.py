"""What the machine has, and which job has which part of it."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from winnow.core.errors import WinnowError
from winnow.deploy.sandbox.isolation import MAX_FILE_MB, ProcessLimits
from winnow.deploy.wire.messages import Resources

MB = 1 << 20


class InsufficientResourcesError(WinnowError):
    """The job asks for more than there is."""


def machine_resources() -> Resources:
    """All processors this process may use, most of the memory, and NVIDIA's GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MB
    gpus = sum(1 for each in Path("/dev").glob("nvidia[0-9]*"))
    return Resources(cpus=float(len(os.sched_getaffinity(0))), memory_mb=memory * 8 // 10, gpus=gpus)


class ResourcePool:
    """Processors and GPUs are given out by number, the least used first; shares of a processor may be shared."""

    def __init__(self, offered: Resources, disk_mb: int = MAX_FILE_MB) -> None:
        """`disk_mb` is what each job may write, however many there are."""
        self.offered, self._disk_mb = offered, disk_mb
        self._taken: dict[str, tuple[Resources, ProcessLimits]] = {}
        self._lock = Lock()
        processors = sorted(os.sched_getaffinity(0))
        first = os.getpid() % len(processors)  # several agents on one machine must not all begin with the same one
        self._processors = processors[first:] + processors[:first]

    def take(self, job: str, wanted: Resources) -> ProcessLimits:
        """The job's part, the same one if it asks again. Raises NoRoomError."""
        with self._lock:
            if job in self._taken:
                return self._taken[job][1]
            self._check(wanted, self.offered, "this site offers")
            self._check(wanted, self._free(), "is free now of what this site offers")
            limits = self._choose(wanted)
            self._taken[job] = (wanted, limits)
            return limits

    def give_back(self, job: str) -> None:
        with self._lock:
            self._taken.pop(job, None)

    def free(self) -> Resources:
        with self._lock:
            return self._free()

    def _free(self) -> Resources:
        taken = [resources for resources, _ in self._taken.values()]
        return Resources(
            cpus=max(0.0, self.offered.cpus - math.fsum(each.cpus for each in taken)),
            memory_mb=max(0, self.offered.memory_mb - sum(each.memory_mb for each in taken)),
            gpus=max(0, self.offered.gpus - sum(each.gpus for each in taken)),
        )

    def _choose(self, wanted: Resources) -> ProcessLimits:
        cpus, gpus = self._users("cpus", self._processors), self._users("gpus", range(self.offered.gpus))
        return ProcessLimits(
            memory_mb=wanted.memory_mb,
            cpus=sorted(sorted(cpus, key=lambda each: cpus[each])[: max(1, math.ceil(wanted.cpus))]),
            gpus=sorted(sorted(gpus, key=lambda each: (gpus[each], each))[: wanted.gpus]),
            disk_mb=self._disk_mb,
        )

    def _users(self, kind: str, numbers: "range | list[int]") -> Mapping[int, int]:
        return {each: sum(each in getattr(limits, kind) for _, limits in self._taken.values()) for each in numbers}

    @staticmethod
    def _check(wanted: Resources, there: Resources, words: str) -> None:
        for kind in ("cpus", "memory_mb", "gpus"):
            asked, present = getattr(wanted, kind), getattr(there, kind)
            if asked > present:
                raise InsufficientResourcesError(f"the job asks for {asked:g} {kind}, and {present:g} {words}")
