"""What a stack leaves on the host, and how much memory it holds while it runs.

Guarantees: nobody else's are counted: processes are found by the state directory in their environment, and
what belongs to a cell that is still held once the stack has ended is another program's.
Does not: clean up; a leak is reported."""

import os
from dataclasses import dataclass
from pathlib import Path

from tiltyard.sandbox.native.cells import cell_of_uid, held_cells

PROC = Path("/proc")
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")
OURS = "tiltyard"
"""Part of the name of every cgroup and mount that a sandbox makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Everything countable that a stack may leave behind."""

    processes: frozenset[str]
    cgroups: frozenset[str]
    mounts: frozenset[str]
    namespaces: frozenset[str]

    def beyond(self, before: "Footprint") -> dict[str, list[str]]:
        """What is here and was not there before, by kind; empty kinds are left out."""
        found = {
            kind: sorted(getattr(self, kind) - getattr(before, kind))
            for kind in ("processes", "cgroups", "mounts", "namespaces")
        }
        return {kind: names for kind, names in found.items() if names}


def footprint(state: Path) -> Footprint:
    """The host as it is now, as far as the stack of this state directory could have changed it."""
    others = held_cells()
    processes, cgroups, inside = processes_of(state), _cgroups(), _sandbox_processes()
    others |= held_cells()  # one that came or went meanwhile is another's too
    return Footprint(
        processes=frozenset(f"{pid} {_command(pid)}" for pid in processes),
        cgroups=frozenset(str(p) for p in cgroups if _cell_of_cgroup(p) not in others),
        mounts=frozenset(_mounts(state)),
        namespaces=frozenset(_namespaces([pid for pid in inside if _cell_of(pid) not in others])),
    )


def processes_of(state: Path) -> list[int]:
    """Pids whose environment names the state directory, and their descendants, without our own."""
    return sorted(_with_descendants(_marked(state)))


def _with_descendants(roots: list[int]) -> set[int]:
    """Some programs overwrite their environment with a title, and sandboxes have none."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = set(roots), list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(new)
        waiting += new
    return found


def _marked(state: Path) -> list[int]:
    mark = b"TILTYARD_STATE_DIR=" + os.fsencode(state)
    found: list[int] = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _command(pid: int) -> str:
    try:
        return (
            (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        return "gone"


def _sandbox_processes() -> list[int]:
    return [int(e.name) for e in PROC.iterdir() if e.name.isdigit() and "tilt-init" in _command(int(e.name))]


def _cell_of(pid: int) -> int | None:
    try:
        return cell_of_uid((PROC / str(pid)).stat().st_uid)
    except OSError:
        return None


def _namespaces(pids: list[int]) -> set[str]:
    """Links like `net:[4026532201]` of sandbox processes that differ from our own."""
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    links: set[str] = set()
    for pid in pids:
        for kind in NAMESPACES:
            try:
                links.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return links - own


def _cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    tops = [root, *(p for p in root.iterdir() if p.is_dir())] if root.is_dir() else []
    return [p for top in tops for p in top.glob(f"*{OURS}*/**/") if p.is_dir()]


def _cell_of_cgroup(folder: Path) -> int | None:
    numbers = [part[1:] for part in folder.parts if part[:1] == "c" and part[1:].isdigit()]
    return int(numbers[0]) if numbers else None


def _mounts(state: Path) -> set[str]:
    lines = (PROC / "self" / "mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines if OURS in line or str(state) in line}


def memory_mb(pids: list[int]) -> float:
    """Proportional set size of these processes together, in MiB: shared pages count once."""
    return sum(_pss_kb(pid) for pid in pids) / 1024


def _pss_kb(pid: int) -> int:
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
