"""Clocks of processes that jump: a small library, loaded before all others, adds what a file says to the wall clock."""

import struct
import subprocess
from pathlib import Path

from winnow.learn.stack.native.load_or_compile_kernels import find_compiler

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *shift;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}
"""


class Clock:
    """The wall clock of one process; `environment` is what it is started with."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("q", 0))
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(file)}

    def jump(self, seconds: int) -> None:
        """To so many seconds before or after the machine's clock."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", seconds))


def compile_library(folder: Path) -> Path:
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    compiler = find_compiler()
    assert compiler is not None
    command = [*compiler, "-x", "c", "-shared", "-fPIC", "-O1", source, "-o", library]
    subprocess.run(command, check=True, capture_output=True)
    return library
