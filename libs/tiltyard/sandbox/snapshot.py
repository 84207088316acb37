"""The files of a box, kept, and given to as many fresh boxes as are wanted.

Guarantees: the archive is made by the box's own `tar`, as its payload, and unpacked in the same way in a
fresh box under that box's limits; nothing on this side looks into it. Folders, modes, times and
links are kept.
Does not: keep processes, connections or shared memory that is no file."""

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import ArchiveRefused, CapabilityRefused
from .result import ExecOutcome, ExecResult

if TYPE_CHECKING:
    from .backend import Box

_NAMES = "cd / && find box tmp dev/shm -mindepth 1 -print0 | LC_ALL=C sort -z"
_FORMAT = "--format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"
_TAKE = ("sh", "-c", f"{_NAMES} | tar {_FORMAT} --no-recursion --null -T - -cf -")
_GIVE = ("tar", "--no-overwrite-dir", "-C", "/", "-xpf")
_MOST_STDIN = 8 << 20
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tar of /box, /tmp and /dev/shm."""

    archive: bytes

    @property
    def digest(self) -> str:
        """Hex; equal for equal files."""
        return hashlib.sha256(self.archive).hexdigest()


async def take(box: "Box", max_bytes: int) -> Snapshot:
    """Raises ArchiveRefused when the files are more than `max_bytes` or cannot be read, CapabilityRefused."""
    result = await box.exec(_TAKE, output_bytes=max_bytes, cpu_seconds=60)
    if result.outcome is ExecOutcome.output_limit:
        raise ArchiveRefused(f"the files of box {box.id} are more than {max_bytes} bytes: raise max_bytes")
    _check(result, f"the files of box {box.id} cannot be kept")
    return Snapshot(result.stdout)


async def give(box: "Box", snapshot: Snapshot) -> None:
    """Unpacks it over what the box holds. Raises ArchiveRefused when it does not fit, CapabilityRefused."""
    archive = snapshot.archive
    if len(archive) <= _MOST_STDIN:
        result = await box.exec((*_GIVE, "-"), stdin=archive, cpu_seconds=60)
    else:
        result = await _give_sealed(box, archive)
    _check(result, f"the snapshot cannot be unpacked in box {box.id}")


async def _give_sealed(box: "Box", archive: bytes) -> ExecResult:
    """By a descriptor, since it is too large for one message; the box opens it anew, to read."""
    fd = os.memfd_create("snapshot")
    try:
        with open(fd, "wb", closefd=False) as file:  # noqa: ASYNC230 - memory, not a disk
            file.write(archive)
        return await box.exec((*_GIVE, "/proc/self/fd/3"), fds={3: fd}, cpu_seconds=60)
    finally:
        os.close(fd)


def _check(result: ExecResult, what: str) -> None:
    if result.exit_code == _NOT_FOUND:
        raise CapabilityRefused(f"{what}: its image lacks tar or find")
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()[-300:]
        raise ArchiveRefused(f"{what}: {result.outcome}: {said or result.detail}")
