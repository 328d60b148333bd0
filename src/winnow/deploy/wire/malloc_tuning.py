"""How a process that moves blobs keeps its memory."""

import ctypes
from contextlib import suppress

MB = 1 << 20
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def tune_malloc() -> None:
    """Have the C library use a freed chunk again instead of giving its memory back and asking for it anew.

    Chunks come and go a thousand times a second, and every page of fresh memory costs a fault: half of what it costs to
    receive a blob. One heap for all threads, so that what one frees another can use.
    """
    with suppress(OSError, AttributeError):  # another C library than glibc
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, 4 * MB)
        libc.mallopt(M_TRIM_THRESHOLD, 32 * MB)
