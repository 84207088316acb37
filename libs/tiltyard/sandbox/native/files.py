"""Files of a box, touched through its tilt-init.

Guarantees: as `tiltyard.sandbox.Box` says; each call is one or a few requests, judged by the box's kernel."""

import errno
import os

from tiltyard.sandbox.errors import FileFault, FileTooLarge
from tiltyard.sandbox.paths import locate
from tiltyard.sandbox.state import Entry, EntryKind

from . import wire
from .command import content
from .link import InitLink

_CHUNK = 1 << 20
_READ_CHUNK = 256 << 10
_LIST_CHUNK = 64 << 10


class BoxFiles:
    """See `tiltyard.sandbox.Box`."""

    _link: InitLink

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        root, below = locate(path)
        data = content(data, path)
        for start in range(0, max(len(data), 1), _CHUNK):
            record = wire.file_record(root, below, data[start : start + _CHUNK], mode, append=start > 0)
            error, _, _ = wire.done(
                await self._link.ask(lambda ident, record=record: wire.write_frame(ident, record))
            )
            if error:
                raise FileFault(f"cannot write {path!r} in the box: {os.strerror(error)}", error)

    async def read(self, path: str, max_bytes: int = 1_000_000) -> bytes:
        root, below = locate(path)
        parts: list[bytes] = []
        got = 0
        while True:
            frame = await self._link.ask(
                lambda ident, at=got: wire.read_frame(
                    ident, root, below, at, min(_READ_CHUNK, max_bytes + 1 - at)
                )
            )
            error, size, part = wire.done(frame)
            if error:
                raise FileFault(f"cannot read {path!r} from the box: {_reason(error)}", error)
            got += len(part)
            if max(got, size) > max_bytes:
                raise FileTooLarge(
                    f"{path!r} has {max(got, size)} bytes, more than the {max_bytes} that were asked for"
                )
            parts.append(part)
            if not part or got >= size:
                return b"".join(parts)

    async def list(self, path: str = "") -> list[Entry]:
        found: list[Entry] = []
        at = 0
        while True:
            at, records = await self._about(wire.Ask.list, path, _LIST_CHUNK, offset=at)
            found += [_entry(record) for record in wire.entries(records)]
            if not at:
                return sorted(found, key=lambda entry: entry.name)

    async def stat(self, path: str) -> Entry:
        _, record = await self._about(wire.Ask.stat, path, 0)
        return _entry(wire.entries(record)[0], name=path.rstrip("/").rpartition("/")[2])

    async def mkdir(self, path: str, mode: int = 0o755) -> None:
        await self._about(wire.Ask.mkdir, path, mode & 0o777)

    async def _about(self, kind: wire.Ask, path: str, size: int, *, offset: int = 0) -> tuple[int, bytes]:
        """The number and the bytes of the answer to a request that names a folder or anything."""
        root, below = locate(path, folder=True)
        frame = await self._link.ask(lambda ident: wire.path_frame(ident, kind, root, below, size, offset))
        error, number, data = wire.done(frame)
        if error:
            raise FileFault(f"cannot {kind.name} {path!r} in the box: {_reason(error)}", error)
        return number, data


def _entry(record: wire.EntryRecord, name: str | None = None) -> Entry:
    return Entry(
        name=os.fsdecode(record.name) if name is None else name,
        kind=EntryKind.of(record.mode),
        size=record.size,
        mode=record.mode & 0o7777,
        modified=record.mtime_ns / 1e9,
    )


def _reason(error: int) -> str:
    if error == errno.ELOOP:
        return "the path holds a symlink, and none is followed"
    if error == errno.EINVAL:
        return "not a regular file"
    return os.strerror(error)
