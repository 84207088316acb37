"""Which cells of this host somebody holds now.

Guarantees: a cell whose holder died, however it died, is not told as held: holding is a lock of the kernel.
Does not: hold or free any; `tilt-host` does (`c/host/cell.c`)."""

import os
from pathlib import Path

REGISTRY = Path("/run/tiltyard/cells")
LOCKS = Path("/proc/locks")
FIRST_UID = 1_900_000_000
"""Cell n has the two uids from FIRST_UID + 2n on."""
MOST = 32_768


def cell_of_uid(uid: int) -> int | None:
    """The cell that a process of this uid lives in, if any."""
    cell = (uid - FIRST_UID) // 2
    return cell if 0 <= cell < MOST else None


def held_cells() -> frozenset[int]:
    """Numbers of cells that are held, by whatever program."""
    try:
        registry = REGISTRY.stat()
    except FileNotFoundError:
        return frozenset()
    device = registry.st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{registry.st_ino}"
    held: set[int] = set()
    for line in LOCKS.read_text().splitlines():
        words = line.split()
        if name in words:
            first, last = words[-2:]
            held.update(range(int(first), MOST if last == "EOF" else int(last) + 1))
    return frozenset(held)
