"""The wall clock of one process, moved while it runs.

Guarantees: everything that asks the C library for the wall clock sees the jump at once; other clocks go on.
Does not: move the clock of the machine, or of a process that calls the kernel by itself."""

import mmap
import os
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long none = 0, *jump = &none;

__attribute__((constructor)) static void find(void) {
    int file = open(getenv("CLOCK_JUMP"), O_RDONLY | O_CLOEXEC);
    void *place = mmap(0, sizeof *jump, PROT_READ, MAP_SHARED, file, 0);
    if (place != MAP_FAILED) jump = place;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *jump;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """A clock for processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._jump, library = folder / "jump", folder / "clock.so"
        self._jump.write_bytes(struct.pack("l", 0))
        (folder / "clock.c").write_text(SOURCE)
        build = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(folder / "clock.c")]
        subprocess.run(build, check=True, capture_output=True)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_JUMP": str(self._jump)}

    def jump_to(self, seconds: int) -> None:
        """So far from the true time; at once."""
        file = os.open(self._jump, os.O_RDWR)
        with mmap.mmap(file, 8) as place:
            place[:] = struct.pack("l", seconds)
        os.close(file)
