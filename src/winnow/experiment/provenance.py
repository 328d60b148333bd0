"""When, where and from which state of the user's own code a run was started."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import torch

GIT_SECONDS = 10.0
"""A repository on a slow disk does not hold a run up for longer; the run then names no commit."""


class Provenance(TypedDict):
    """Entries of a run's label."""

    started: str
    machine: str
    commit: str


def provenance(device: str) -> Provenance:
    """Of a run that starts now and computes on this kind of device. The host's name is left out: reports travel."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Provenance(started=started, machine=_machine(device), commit=_commit())


def _machine(device: str) -> str:
    cores = os.cpu_count() or 1
    parts = [
        torch.cuda.get_device_name() if device == "cuda" else "",
        _processor(),
        f"{cores} core{'s' * (cores != 1)}",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        f"torch {torch.__version__}",
    ]
    return ", ".join(filter(None, parts))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    """Of the repository in whose folder the run was started, with "-dirty" where files differ; empty outside of one."""
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
