"""Processes of a session: what stands for a machine or a pod that is destroyed with all that runs in it."""

import os
import signal
from contextlib import suppress
from pathlib import Path

_SESSION_FIELD = 3
"""of /proc/PID/stat, counted behind the name"""


def kill_session(leader: int) -> None:
    """Kills every process of a session, until none is found."""
    while found := _members(leader):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _members(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[_SESSION_FIELD]) == leader and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found
