"""What Python says to tilt-host and tilt-init, and hears from them. Mirrors c/wire.h, in this host's byte
order."""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.paths import Root

MAX_FRAME = 16 << 20
FIRST_FD, LAST_FD = 3, 15

_POOL = struct.Struct("=4I4Q4I64s")
_KILL = struct.Struct("=4I")
_EVENT = struct.Struct("=3Ii2i4I4Q")
EVENT_SIZE = _EVENT.size
REASON_SIZE = 512
"""A packet of this size is text: why tilt-host ends."""
_EXEC = struct.Struct("=4Q6I")
_FILE = struct.Struct("=6I")
_READ = struct.Struct("=Q2I")
_DONE = struct.Struct("=iiQ")
_ENTRY = struct.Struct("=QqII")
_CONNECT = struct.Struct("=2I")
_STATS = struct.Struct("=8Q4I")
_EXIT = struct.Struct("=2I3i3I5Q")
_FRAME = struct.Struct("=IBBHI")
FRAME_SIZE = _FRAME.size


class Event(IntEnum):
    """What tilt-host says."""

    box = 1
    """a ready box; its socket comes with the message"""
    lost = 2
    """a box died although nobody asked"""
    failed = 3
    """a box could not be made"""
    counts = 4
    """the answer to `stats`"""
    refused = 5
    """a request that makes no sense"""
    frozen = 6
    """the answer to `freeze`"""


class Say(IntEnum):
    """What tilt-init says."""

    output = 1
    """bytes that the command wrote"""
    exit = 2
    """the command's end"""
    done = 3
    """a write or read was done"""


class Ask(IntEnum):
    """What tilt-init is asked."""

    exec = 1
    """start a command"""
    write = 2
    """write a file"""
    read = 3
    """read a part of a file"""
    kill = 4
    """kill the command"""
    list = 5
    """name what a folder holds"""
    stat = 6
    """look at one name"""
    mkdir = 7
    """make a folder and those above it"""
    stats = 8
    """what the box uses"""
    survey = 9
    """what a pristine box would show too"""
    connect = 10
    """connect to a port inside"""
    branch = 11
    """serve one more command, over a socket of its own"""
    listen = 12
    """listen on a port inside"""
    hold = 13
    """the command's clocks stand still"""
    go_on = 14
    """they go on"""


class Reason(IntEnum):
    """Why a command ended, as tilt-init saw it."""

    exited = 0
    """by itself"""
    signalled = 1
    """by a signal"""
    cpu = 2
    """its CPU time was used"""
    wall = 3
    """its time passed"""
    idle = 4
    """it was idle for too long"""
    output = 5
    """it wrote too much"""
    killed = 6
    """by request"""
    spawn = 7
    """it could not be started"""
    file = 8
    """one of its files could not be written"""


EXEC_STREAM, EXEC_WARM, EXEC_TTY = 1, 2, 4
FLAG_OUT_CUT, FLAG_ERR_CUT, FLAG_DISK_FULL, FLAG_STUCK = 1, 2, 4, 8

STEPS = (
    *(
        "ready",
        "taking a cell",
        "clone",
        "joining its cgroup",
        "opening its counters",
        "entering its network namespace",
    ),
    *(
        "mounting its tmpfs",
        "making its layers",
        "mounting its overlay",
        "binding /usr",
        "mounting /proc",
        "making /dev",
    ),
    *(
        "replacing its root",
        "naming it",
        "entering its user namespace",
        "changing identity",
        "placing descriptors",
    ),
    *("starting tilt-init", "dropping rights", "installing seccomp", "setting limits", "opening its folders"),
    "calling over its socket",
)
"""What tilt-host and tilt-init were doing when a box failed to start, by `HostEvent.step`."""


class HostEvent(NamedTuple):
    """One message from tilt-host."""

    op: int
    cell: int
    life: int
    status: int
    error: int
    step: int
    oom: int
    alive: int
    ready: int
    cells: int
    created: int
    destroyed: int
    failed: int
    made_ns: int


class ExitReport(NamedTuple):
    """A command's end. Times in nanoseconds, sizes in bytes."""

    reason: int
    flags: int
    code: int
    signal: int
    error: int
    oom_kills: int
    pids_hits: int
    left: int
    cpu_ns: int
    wall_ns: int
    peak_bytes: int
    throttled_ns: int
    waited_ns: int


class EntryRecord(NamedTuple):
    """One name in a folder. Bytes, nanoseconds since 1970, st_mode."""

    size: int
    mtime_ns: int
    mode: int
    name: bytes


class Stats(NamedTuple):
    """What a box uses. Times in nanoseconds, sizes in bytes."""

    cpu_ns: int
    throttled_ns: int
    memory: int
    peak: int
    disk_used: int
    disk: int
    inodes_used: int
    inodes: int
    pids: int
    oom_kills: int
    pids_hits: int
    branches: int


class Frame(NamedTuple):
    """One message from tilt-init."""

    type: int
    stream: int
    id: int
    payload: bytes


def pool_request(*, size: int, starting: int, limits: Limits, image: str, reuses: int = 0) -> bytes:
    """`reuses`: how many boxes one cell may serve; 0: any number."""
    return _POOL.pack(
        *(
            1,
            size,
            starting,
            limits.pids,
            limits.memory_bytes,
            limits.disk_bytes,
            limits.inodes,
            limits.file_bytes,
        ),
        *(round(limits.cpus * 1000), limits.nofile, reuses, 0, image.encode()),
    )


def kill_request(cell: int, life: int, *, retire: bool = False) -> bytes:
    """`retire`: its cell is not used again."""
    return _KILL.pack(2, cell, life, retire)


def freeze_request(cell: int, life: int, *, on: bool) -> bytes:
    return _KILL.pack(4, cell, life, on)


STATS_REQUEST = struct.pack("=I", 3)


def host_event(message: bytes) -> HostEvent:
    return HostEvent(*_EVENT.unpack(message))


def _frame(kind: Ask, ident: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), kind, 0, 0, ident) + payload


def file_record(root: Root, path: bytes, data: bytes, mode: int, *, append: bool = False) -> bytes:
    return b"".join((_FILE.pack(root, mode, append, len(path) + 1, len(data), 0), path, b"\0", data))


def write_frame(ident: int, record: bytes) -> bytes:
    return _frame(Ask.write, ident, record)


def read_frame(ident: int, root: Root, path: bytes, offset: int, size: int) -> bytes:
    return _frame(Ask.read, ident, _READ.pack(offset, root, size) + path + b"\0")


def path_frame(ident: int, kind: Ask, root: Root, path: bytes, size: int, offset: int = 0) -> bytes:
    """For list (size: bytes of the answer), stat and mkdir (size: the mode)."""
    return _frame(kind, ident, _READ.pack(offset, root, size) + path + b"\0")


def bare_frame(ident: int, kind: Ask) -> bytes:
    return _frame(kind, ident, b"")


def port_frame(ident: int, kind: Ask, family: int, port: int) -> bytes:
    """For connect and listen."""
    return _frame(kind, ident, _CONNECT.pack(family, port))


def entries(records: bytes) -> list[EntryRecord]:
    found, at = [], 0
    while at < len(records):
        size, mtime, mode, length = _ENTRY.unpack_from(records, at)
        at += _ENTRY.size
        found.append(EntryRecord(size, mtime, mode, records[at : at + length]))
        at += length
    return found


def stats(record: bytes) -> Stats:
    return Stats(*_STATS.unpack(record))


def kill_frame(ident: int) -> bytes:
    return _frame(Ask.kill, ident, b"")


class ExecLimits(NamedTuple):
    """The limits of one command: nanoseconds (idle 0: none) and bytes a stream."""

    cpu_ns: int
    wall_ns: int
    idle_ns: int
    output_bytes: int


def exec_frame(
    ident: int,
    limits: ExecLimits,
    argv: Sequence[bytes],
    env: Mapping[bytes, bytes],
    cwd: bytes,
    *,
    fd_numbers: Sequence[int],
    files: Sequence[bytes],
    stdin: bytes,
    flags: int,
) -> bytes:
    """The strings must hold no NUL; the caller has checked."""
    head = _EXEC.pack(*limits, len(argv), len(env), len(fd_numbers), len(files), len(stdin), flags)
    numbers = struct.pack(f"={len(fd_numbers)}I", *fd_numbers)
    strings = [*argv, *(name + b"=" + value for name, value in env.items()), cwd, b""]
    return _frame(Ask.exec, ident, b"".join((head, numbers, b"\0".join(strings), *files, stdin)))


def take_frame(buffer: bytearray) -> Frame | None:
    """Removes and returns the first whole frame, None when there is none yet."""
    if len(buffer) < FRAME_SIZE:
        return None
    size, kind, stream, _, ident = _FRAME.unpack_from(buffer)
    end = FRAME_SIZE + size
    if len(buffer) < end:
        return None
    payload = bytes(memoryview(buffer)[FRAME_SIZE:end])
    del buffer[:end]
    return Frame(kind, stream, ident, payload)


def exit_report(payload: bytes) -> ExitReport:
    return ExitReport(*_EXIT.unpack(payload))


def done(payload: bytes) -> tuple[int, int, bytes]:
    """errno, the file's size, the bytes read."""
    error, _, size = _DONE.unpack_from(payload)
    return error, size, payload[_DONE.size :]
