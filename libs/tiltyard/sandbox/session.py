"""What a box offers that needs nothing of its backend: archives, snapshots and forwarded ports.

Guarantees: built on `Box`'s own calls, so it is as safe as they are on every backend."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from .archive import MAX_ENTRIES, Member, pack, plan
from .errors import ArchiveRefused, SandboxError
from .snapshot import Snapshot, give, take
from .state import Entry, EntryKind

if TYPE_CHECKING:
    from .backend import Box

_CHUNK = 64 << 10
_AT_ONCE = 16


class _Calls(Protocol):
    """What of a box this needs."""

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None: ...
    async def read(self, path: str, max_bytes: int = 1_000_000) -> bytes: ...
    async def list(self, path: str = "") -> list[Entry]: ...
    async def mkdir(self, path: str, mode: int = 0o755) -> None: ...
    async def connect(self, port: int, *, timeout: float = 5.0) -> socket.socket: ...


class BoxSession:
    """See `tiltyard.sandbox.Box`; a backend's box inherits it."""

    async def tar_in(self: _Calls, archive: bytes, path: str = "", *, max_bytes: int = 64 << 20) -> int:
        members = await asyncio.to_thread(plan, archive, max_bytes)
        folders = [member for member in members if member.data is None and member.path]
        for folder in folders:
            await self.mkdir(_below(path, folder.path), folder.mode | 0o700)
        files = [member for member in members if member.data is not None]
        for start in range(0, len(files), _AT_ONCE):
            await asyncio.gather(
                *(
                    self.write(_below(path, file.path), file.data or b"", file.mode)
                    for file in files[start : start + _AT_ONCE]
                )
            )
        return len(members)

    async def tar_out(self: _Calls, path: str = "", *, max_bytes: int = 64 << 20) -> bytes:
        members: list[Member] = []
        room = max_bytes
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for entry in await self.list(_below(path, folder)):
                inner = f"{folder}/{entry.name}".lstrip("/")
                if len(members) >= MAX_ENTRIES or (entry.size > room and entry.kind is EntryKind.file):
                    raise ArchiveRefused(
                        f"folder {path!r} holds more than {max_bytes} bytes or {MAX_ENTRIES} entries"
                    )
                if entry.kind is EntryKind.folder:
                    waiting.append(inner)
                    members.append(Member(inner, entry.mode, None))
                elif entry.kind is EntryKind.file:
                    data = await self.read(_below(path, inner), room)
                    room -= len(data)
                    members.append(Member(inner, entry.mode, data))
        return await asyncio.to_thread(pack, members)

    async def snapshot(self: "Box", *, max_bytes: int = 256 << 20) -> Snapshot:
        return await take(self, max_bytes)

    async def restore(self: "Box", snapshot: Snapshot) -> None:
        await give(self, snapshot)

    @asynccontextmanager
    async def expose(self: _Calls, port: int, *, path: str | None = None) -> AsyncIterator[str]:
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _forward(self, port, reader, writer)

        if path is not None:
            server = await asyncio.start_unix_server(forward, path)
            address = path
        else:
            server = await asyncio.start_server(forward, "127.0.0.1", 0)
            address = "{}:{}".format(*server.sockets[0].getsockname())
        try:
            yield address
        finally:
            server.close()


def _below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}" if path and name else path or name


async def _forward(
    box: _Calls, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One connection, both ways, until either side has said all."""
    try:
        inside = await box.connect(port)
    except SandboxError:
        writer.close()  # the caller sees a connection that ends, as from a server that is not there
        return
    inner_reader, inner_writer = await asyncio.open_connection(sock=inside)
    await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
    for end in (inner_writer, writer):
        end.close()
        with suppress(OSError):
            await end.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()  # one side broke off: the other learns it
