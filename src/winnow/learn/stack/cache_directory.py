"""Where things are kept that this machine need not work out twice."""

import hashlib
import os
import platform
from functools import cache
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of this name in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "winnow" / name


def cache_key(*parts: str | bytes) -> str:
    """A short name for what depends on all of these."""
    found = hashlib.sha256()
    for part in parts:
        found.update(hashlib.sha256(part if isinstance(part, bytes) else part.encode()).digest())
    return found.hexdigest()[:32]


@cache
def processor_description() -> str:
    """What this machine's processor is, and can do."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in first if line.startswith(("model name", "flags", "Features", "CPU part")))
