"""The isolation of a job's process: limits for every job, a sandbox for jobs that bring their own code."""

import os
import resource
import sys
import sysconfig
from functools import cache
from pathlib import Path

import msgspec

from winnow.deploy.sandbox import landlock, seccomp
from winnow.deploy.sandbox.linux_syscall_wrappers import SandboxError, drop_capabilities, machine

MB = 1 << 20
LIBRARY_MEMORY_MB = 512
"""Torch and what it loads take some 320 MB before a job has any data."""
MAPPED_LIBRARIES_MB = 4096
"""Libraries are mapped files: address space, not memory."""
MAX_OPEN_FILES = 1024
MAX_FILE_MB = 16 * 1024

SYSTEM_FILES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/sys/devices/system"),
    *(f"/proc/self/{name}" for name in ("cgroup", "environ", "fd", "limits", "maps", "stat", "statm", "status")),
)
"""Of its own process it sees what libraries read; the rest would reveal the machine's network and file systems."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's process may use; the kernel enforces it."""

    memory_mb: int
    cpus: list[int]
    """The processors it runs on, by number."""
    gpus: list[int] = []
    open_files: int = MAX_OPEN_FILES
    disk_mb: int = MAX_FILE_MB
    """Of its folder: its supervisor watches the sum, the kernel limits the size of each file."""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """All files that a job's own code may use besides Python and its libraries."""

    read: list[str]
    write: list[str]


def sandbox_unavailable_reason() -> str | None:
    """Why this machine cannot sandbox a process; None if it can."""
    if sys.platform != "linux" or machine() not in seccomp.ARCHITECTURES:
        return f"a sandbox needs Linux on {' or '.join(seccomp.ARCHITECTURES)}"
    if landlock.version() < landlock.NEEDED:
        return "this kernel has no Landlock that guards all of a file; use Linux 6.2 or newer with it switched on"
    return None


def limit(limits: ProcessLimits) -> None:
    """Limit memory, processors, files. With a GPU the address space stays free: its driver reserves terabytes."""
    os.sched_setaffinity(0, limits.cpus)
    if not limits.gpus:
        _set(resource.RLIMIT_DATA, (limits.memory_mb + LIBRARY_MEMORY_MB) * MB)
        _set(resource.RLIMIT_AS, (limits.memory_mb + MAPPED_LIBRARIES_MB) * MB)
    _set(resource.RLIMIT_NOFILE, limits.open_files)
    _set(resource.RLIMIT_FSIZE, min(limits.disk_mb, MAX_FILE_MB) * MB)
    _set(resource.RLIMIT_CORE, 0)


def enter_sandbox(sandbox: Sandbox, *, gpus: bool = False) -> None:
    """For good: a process cannot leave its sandbox."""
    if reason := sandbox_unavailable_reason():
        raise SandboxError(reason)
    drop_capabilities()
    seccomp.install()
    landlock.restrict(
        read=[*readable_paths(), *map(Path, sandbox.read)],
        write=[Path(each) for each in sandbox.write],
        devices=[*map(Path, DEVICES), *(Path("/dev").glob("nvidia*") if gpus else ())],
    )


def readable_paths() -> list[Path]:
    """Python, what is installed for it, and what the libraries read of the system."""
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values(), *sys.path}
    return [Path(each) for each in sorted({*filter(None, python), *SYSTEM_FILES})]


def exposing_path(secret: Path) -> Path | None:
    """The folder readable by sandboxed code that contains this path, if there is one."""
    place = secret.resolve()
    return next((each for each in _resolved_readable_paths() if place.is_relative_to(each)), None)


@cache
def _resolved_readable_paths() -> list[Path]:
    """They are the same for as long as this process lives, and it asks before every task."""
    return [each.resolve() for each in readable_paths()]


def environment(folder: Path, limits: ProcessLimits, *, shared_cache: bool = False) -> dict[str, str]:
    """Nothing of the agent's own environment: it may hold secrets. Its user's cache has kernels that were compiled for
    earlier jobs; only a process that runs none of the job's own code may share it.
    """
    threads = str(len(limits.cpus))
    cache = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())}
    return {
        **(cache if shared_cache else {}),
        "PATH": os.defpath,
        "LC_ALL": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "USER": "winnow",
        "LOGNAME": "winnow",
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # its own reserves a gigabyte at once, which counts against the limit
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, limits.gpus)),
    }


def _set(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))
