"""What the process of a job may use at the server."""

import os
from pathlib import Path

from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.sandbox.isolation import MB, ProcessLimits

OPEN_FILES = 1 << 16
"""Each reply that waits for being folded is one."""
UNLIMITED_DISK_MB = 1 << 40
"""More than there is."""


def runner_limits(bundle: Bundle, code_mb: int, code_disk_mb: int) -> ProcessLimits:
    """Code of a job's own has so much memory and disk and no GPU; a job of Winnow's own has what the machine has."""
    cpus = sorted(os.sched_getaffinity(0))
    if bundle.own_code:
        return ProcessLimits(memory_mb=code_mb, cpus=cpus, disk_mb=code_disk_mb)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ProcessLimits(
        memory_mb=memory // MB, cpus=cpus, gpus=_gpus(), open_files=OPEN_FILES, disk_mb=UNLIMITED_DISK_MB
    )


def _gpus() -> list[int]:
    """Those that the server itself was given, by number."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    else:
        names = given.split(",")
    return sorted(int(name) for name in names if name.isdecimal())
