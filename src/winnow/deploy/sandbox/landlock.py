"""Which files a process may see and change, by Linux's Landlock: from now on, and for good.

Landlock knows what is allowed and denies the rest. It does not hide that a file exists, nor guard modes, owners and
times; `winnow.deploy.sandbox.seccomp` denies the calls that change those.
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from winnow.deploy.sandbox.linux_syscall_wrappers import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
PATH_BENEATH = 1

WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
ON_FILES = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
"""What may be granted for a file; the rest is for folders."""

HANDLED = {3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All that Landlock guards, by its version."""
NEEDED = 3
"""Before this version a file that may only be read can be cut to nothing when it is opened."""
NO_TCP = 0b11
NO_FOREIGN_SIGNALS_OR_SOCKETS = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Of this kernel's Landlock; 0 where there is none."""
    try:
        return syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION_FLAG))
    except OSError:
        return 0


def restrict(*, read: Iterable[Path], write: Iterable[Path], devices: Iterable[Path] = ()) -> None:
    """Restrict this process to these files and folders. Paths that do not exist are ignored."""
    newest = version()
    handled = HANDLED[min(newest, max(HANDLED))]
    rules = _Ruleset(handled, NO_TCP if newest >= 4 else 0, NO_FOREIGN_SIGNALS_OR_SOCKETS if newest >= 6 else 0)
    size = 24 if newest >= 6 else 16 if newest >= 4 else 8
    ruleset = syscall(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in ((read, READ), (write, WRITE), (devices, DEVICE)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        syscall(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= ON_FILES
        rule = _PathBeneath(rights, place)
        syscall(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)
