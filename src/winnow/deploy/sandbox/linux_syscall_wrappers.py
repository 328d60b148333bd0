"""Linux system calls that Python does not provide."""

import ctypes
import os
from pathlib import Path

from winnow.core.errors import WinnowError

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
MADV_DONTNEED = 4
CAPABILITY_VERSION = 0x20080522
CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(WinnowError):
    """This machine cannot sandbox a process."""


def machine() -> str:
    return os.uname().machine


def syscall(number: int, *arguments: object) -> int:
    """The call's result; OSError where it fails."""
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def prctl(option: int, *arguments: object) -> None:
    padded = [*arguments, 0, 0, 0, 0][:4]
    if _libc.prctl(option, *(each if not isinstance(each, int) else ctypes.c_ulong(each) for each in padded)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def drop_capabilities() -> None:
    """Even root then has no more rights than any owner of root's files."""
    if os.geteuid() == 0:
        for capability in range(64):
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:
                break  # the kernel knows no more of them
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    syscall(CAPSET[machine()], ctypes.byref(header), ctypes.byref(nothing))


def drop_code_pages() -> None:
    """Release the pages of libraries' code that only startup needed; pages that are needed again are loaded again.

    They are copies of files, never changed, so dropping them loses nothing; an idle process is a dozen megabytes less.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, name = line.split()
        if rights == "r-xp" and name.startswith("/"):
            start, end = (int(each, 16) for each in place.split("-"))
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)
