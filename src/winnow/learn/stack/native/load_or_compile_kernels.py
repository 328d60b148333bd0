"""The compiled kernels: those of the wheel, or else compiled for this machine, once, into the user's cache folder.

What is loaded runs with the user's rights, so it must be the user's own, or the administrator's where Winnow is
installed: a folder or file that somebody else owns or can write to is not used.
"""

import ctypes
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winnow.learn.stack.cache_directory import cache_folder, cache_key, processor_description
from winnow.learn.stack.native.kernel_compilation import (
    FLAGS,
    LEVELS,
    PACKAGED,
    SOURCE,
    compile_command,
    definitions,
    lanes,
    packaged_name,
)

COMPILERS = ("c++", "g++", "clang++")
COMPILER_PACKAGE = "ziglang"
"""A Python package with a compiler, for machines that have none."""
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
    """The compiled kernels for float or double, built first if neither the wheel nor this machine's cache has them."""
    try:
        packaged = _packaged(real)
    except NativeUnavailableError as refused:
        try:
            return _built(real)
        except NativeUnavailableError:
            raise refused from None
    return _built(real) if packaged is None else CompiledKernels(libraries=packaged, newly_built=False)


def prepare() -> None:
    """Compile the kernels now, so that no run waits for them; for set-up."""
    try:
        load_kernels("float")
    except NativeUnavailableError as reason:
        print(f"training will be slower: {reason}")


def _packaged(real: str) -> dict[int, ctypes.CDLL] | None:
    """Those of the wheel for the best that this processor can do, if they were made from this very source."""
    if not PACKAGED.is_dir():
        return None
    _refuse_foreign(PACKAGED, installed=True)
    features = _processor_features()
    for level in LEVELS.get(platform.machine(), ()):
        paths = {width: PACKAGED / packaged_name(level, real, width, SOURCE) for width in level.lanes(real)}
        if level.features <= features:
            libraries = {width: _known(path, installed=True) for width, path in paths.items()}
            found = {width: library for width, library in libraries.items() if library is not None}
            return found if len(found) == len(paths) else None
    return None


def _built(real: str) -> CompiledKernels:
    folder = _own_folder()
    paths = {
        width: folder / f"{_fingerprint(*definitions(real, width))}.so" for width in lanes(real, _processor_features())
    }
    libraries = _found(paths)
    if len(libraries) == len(paths):
        return CompiledKernels(libraries=libraries, newly_built=False)
    with _one_builder_at_a_time(folder), ThreadPoolExecutor() as pool:
        libraries = _found(paths)
        missing = [width for width in paths if width not in libraries]
        built = pool.map(lambda width: _compile(paths[width], real, width), missing)
        libraries |= dict(zip(missing, built, strict=True))
    return CompiledKernels(libraries=libraries, newly_built=bool(missing))


def _found(paths: Mapping[int, Path]) -> dict[int, ctypes.CDLL]:
    return {width: library for width, path in paths.items() if (library := _known(path))}


@contextmanager
def _one_builder_at_a_time(folder: Path) -> Iterator[None]:
    """Processes that start together wait for the first one and find its files."""
    import fcntl  # noqa: PLC0415 - Unix only, as native execution is

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _processor_features() -> frozenset[str]:
    return frozenset(processor_description().split())


def _known(library: Path, *, installed: bool = False) -> ctypes.CDLL | None:
    """None also for one that is damaged, or was made for another system that shares this home."""
    if not library.exists():
        return None
    _refuse_foreign(library, installed=installed)
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


def _refuse_foreign(path: Path, *, installed: bool = False) -> None:
    """What is installed may be the administrator's."""
    found, owners = path.lstat(), {os.getuid(), 0} if installed else {os.getuid()}
    if found.st_uid not in owners or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or stat.S_ISLNK(found.st_mode):
        remedy = "make it yours alone" if installed else "remove it or set XDG_CACHE_HOME to a private folder"
        raise NativeUnavailableError(f"{path} belongs to, or is writable by, another user; {remedy}")


def find_compiler() -> tuple[str, ...] | None:
    """The start of a compiler's command line: the system's compiler, or else the installed package's."""
    for name in COMPILERS:
        if found := shutil.which(name):
            return (found,)
    if importlib.util.find_spec(COMPILER_PACKAGE):
        return (
            sys.executable,
            "-P",
            "-m",
            COMPILER_PACKAGE,
            "c++",
        )  # -P: a ziglang.py of the working folder is not run
    return None


def _compile(library: Path, real: str, width: int) -> ctypes.CDLL:
    """Compile into a file of this process's own, then move it in one step."""
    compiler = find_compiler()
    if compiler is None:
        raise NativeUnavailableError(
            f"no C++ compiler found; install g++ or clang++, or run 'pip install {COMPILER_PACKAGE}'"
        )
    handle, name = tempfile.mkstemp(suffix=".part", dir=library.parent)
    os.close(handle)
    command = compile_command(compiler, _target(), real, width, SOURCE, Path(name))
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT)  # noqa: S603  # our own
        Path(name).chmod(0o700)
        Path(name).replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        errors = [line for line in said.splitlines() if "error" in line] or said.splitlines()[:1]
        reason = errors[0] if errors else "no reason given"
        raise NativeUnavailableError(f"{' '.join(compiler)} failed: {reason}") from error
    finally:
        Path(name).unlink(missing_ok=True)
