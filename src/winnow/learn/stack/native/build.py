"""Compiling the kernels for this machine, once; the result is kept in the user's cache folder.

What is loaded runs with the user's rights, so it must be the user's own: a folder or file that somebody else owns or
can write to is not used.
"""

import ctypes
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winnow.learn.stack.user_cache import cache_folder, cache_key, processor_description

SOURCE = Path(__file__).parent / "source"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
COMPILE_TIMEOUT = 300
"""Seconds after which a compiler is taken to hang."""


class NativeUnavailableError(Exception):
    """Why there is no compiled code here, in one line."""


def native_disabled() -> bool:
    return os.environ.get("WINNOW_NATIVE") == "0"


@dataclass(frozen=True, kw_only=True)
class CompiledKernels:
    """The kernels of one precision, by the number of samples that they take at a time."""

    libraries: Mapping[int, ctypes.CDLL]
    newly_built: bool


@cache
def load_kernels(real: str) -> CompiledKernels:
    """The compiled kernels for float or double, built first if this machine has not built them yet."""
    folder = _own_folder()
    defined = {lanes: (f"-DREAL={real}", f"-DLANES={lanes}") for lanes in _lanes(real)}
    paths = {lanes: folder / f"{_fingerprint(*defined[lanes])}.so" for lanes in defined}
    libraries = {lanes: library for lanes, path in paths.items() if (library := _known(path))}
    missing = [lanes for lanes in paths if lanes not in libraries]
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda lanes: _compile(paths[lanes], *defined[lanes]), missing)
        libraries |= dict(zip(missing, built, strict=True))
    return CompiledKernels(libraries=libraries, newly_built=bool(missing))


def _lanes(real: str) -> tuple[int, ...]:
    """How many samples fill a vector; small batches would waste most of a wide one."""
    return (8, 16) if real == "float" and "avx512f" in processor_description().split() else (8,)


def _known(library: Path) -> ctypes.CDLL | None:
    """None also for one that is damaged, or was made for another system that shares this home."""
    if not library.exists():
        return None
    _refuse_foreign(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _fingerprint(*defined: str) -> str:
    """Of everything that the compiled code depends on."""
    sources = [part for path in sorted(SOURCE.iterdir()) for part in (path.name, path.read_bytes())]
    return cache_key(" ".join((*FLAGS, *defined, _target())), processor_description(), *sources)


def _target() -> str:
    """GCC and Clang name 'this processor' differently from one architecture to another."""
    return "-march=native" if platform.machine() in ("x86_64", "AMD64", "i686") else "-mcpu=native"


def _own_folder() -> Path:
    if not hasattr(os, "getuid"):
        raise NativeUnavailableError("native execution needs Linux or macOS")
    folder = cache_folder("native")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NativeUnavailableError(
            f"cannot create {folder} ({error.strerror}); set XDG_CACHE_HOME to a writable folder"
        ) from error
    _refuse_foreign(folder)
    return folder


def _refuse_foreign(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(found.st_mode):
        raise NativeUnavailableError(
            f"{path} belongs to, or is writable by, another user; remove it or set XDG_CACHE_HOME to a private folder"
        )


def _compile(library: Path, *defined: str) -> ctypes.CDLL:
    """Into a file of this process's own, then moved in one go: several processes may start at once."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NativeUnavailableError("no C++ compiler found; install g++ or clang++")
    handle, name = tempfile.mkstemp(suffix=".part", dir=library.parent)
    os.close(handle)
    command = [compiler, *FLAGS, *defined, _target(), str(SOURCE / "native.cpp"), "-o", name]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT)  # noqa: S603  # our own
        Path(name).chmod(0o700)
        Path(name).replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()[:1]
        raise NativeUnavailableError(f"{compiler} failed: {errors[0] if errors else 'no reason given'}") from error
    finally:
        Path(name).unlink(missing_ok=True)
