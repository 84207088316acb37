"""One E2B sandbox: its envd, spoken to over HTTP.

Does not: refuse symlinks within the sandbox; they lead nowhere but into it.
Source: e2b-dev/E2B, spec/envd (August 2026)."""

import errno
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import httpx

from tiltyard.sandbox.errors import FileFault, FileTooLarge, SandboxGone
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.remote.api import Api, Refused, Unanswered
from tiltyard.sandbox.remote.fleet import Ended, Order
from tiltyard.sandbox.result import ExecOutcome
from tiltyard.sandbox.state import Entry, EntryKind

from .command import Execution, Unstarted
from .connect import UNARY

USER = "user"
_HOME = f"/home/{USER}"
_KINDS = {"FILE_TYPE_FILE": EntryKind.file, "FILE_TYPE_DIRECTORY": EntryKind.folder}
_ERRORS = {
    "not_found": errno.ENOENT,
    "already_exists": errno.EEXIST,
    "permission_denied": errno.EACCES,
    "invalid_argument": errno.ENOTDIR,
    "failed_precondition": errno.ELOOP,
}
_FILE_ERRORS = {404: errno.ENOENT, 400: errno.EISDIR, 403: errno.EACCES, 507: errno.ENOSPC}


class E2BGuest:
    """See `tiltyard.sandbox.remote.fleet.Guest`."""

    home = _HOME

    def __init__(self, ident: str, envd: Api, is_there: Callable[[str], Awaitable[bool]]) -> None:
        self.id = ident
        self._envd = envd
        self._is_there = is_there

    async def run(self, order: Order) -> Ended:
        execution = Execution(self._envd, order)
        try:
            ended = await execution.run()
        except Unstarted as error:
            await self._look()
            return Ended(
                outcome=ExecOutcome.infra_error, detail=f"the sandbox did not take the command: {error}"
            )
        if ended.outcome is ExecOutcome.infra_error and not execution.has_begun:
            await self._look()
        return ended

    async def write(self, path: str, data: bytes, mode: int) -> None:
        where = {"path": path, "username": USER}
        await self._file("POST", path, params=where, files={"file": ("file", data)})
        if mode != 0o644:
            await self._change_mode(path, mode)

    async def read(self, path: str, most: int) -> bytes:
        url, headers = self._envd.url("/files"), self._envd.headers()
        where = {"path": path, "username": USER}
        try:
            async with self._envd.client.stream("GET", url, params=where, headers=headers) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    await self._raise("read", path, self._envd.fault("GET", "/files", answer))
                parts = bytearray()
                async for chunk in answer.aiter_bytes():
                    parts += chunk
                    if len(parts) > most:
                        raise FileTooLarge(f"{path!r} has more than the {most} bytes that were asked for")
                return bytes(parts)
        except httpx.HTTPError as error:
            await self._look()
            raise Unanswered(
                self._envd.clean(f"reading {path!r}: {type(error).__name__}: {error}")
            ) from error

    async def list(self, path: str) -> list[Entry]:
        found = await self._filesystem("ListDir", path, depth=1)
        return [_entry(each) for each in found.get("entries", [])]

    async def stat(self, path: str) -> Entry:
        return _entry((await self._filesystem("Stat", path)).get("entry", {}))

    async def mkdir(self, path: str, mode: int) -> None:
        try:
            await self._filesystem("MakeDir", path)
        except FileFault as fault:
            if fault.error != errno.EEXIST:
                raise
            return
        if mode != 0o755:
            await self._change_mode(path, mode)

    async def _change_mode(self, path: str, mode: int) -> None:
        order = Order(
            argv=["chmod", f"{mode:o}", path],
            env={},
            cwd=self.home,
            stdin=b"",
            cpu_seconds=10,
            wall_seconds=30,
            output_bytes=10_000,
            limits=Limits(),
            on_output=None,
        )
        ended = await self.run(order)
        if ended.outcome is not ExecOutcome.ok:
            raise FileFault(
                f"cannot set the mode of {path!r}: {ended.stderr.decode(errors='replace')}", errno.EPERM
            )

    async def _filesystem(self, name: str, path: str, **more: object) -> dict[str, Any]:
        try:
            answer = await self._envd.call(
                "POST",
                f"/filesystem.Filesystem/{name}",
                ok=(200, 400, 403, 404, 409, 412),
                again=True,
                headers=UNARY,
                json={"path": path, **more},
            )
        except (Refused, Unanswered):
            await self._look()
            raise
        document = answer.json()
        if answer.status_code != 200:
            error = _ERRORS.get(document.get("code", ""), errno.EIO)
            said = self._envd.clean(str(document.get("message", "")))
            raise FileFault(f"cannot {name} {path!r} in the box: {said}", error)
        return document

    async def _file(self, method: str, path: str, **options: Any) -> None:
        try:
            await self._envd.call(method, "/files", again=True, **options)
        except (Refused, Unanswered) as fault:
            await self._raise("write", path, fault)

    async def _raise(self, what: str, path: str, fault: Exception) -> None:
        """What a file's fault means: of the file, or of the whole sandbox."""
        error = _FILE_ERRORS.get(fault.status) if isinstance(fault, Refused) else None
        if error is not None:
            raise FileFault(f"cannot {what} {path!r} in the box: {fault}", error) from fault
        await self._look()
        raise fault

    async def _look(self) -> None:
        """Raises SandboxGone when the provider knows it no more."""
        if not await self._is_there(self.id):
            raise SandboxGone(f"sandbox {self.id} is gone: its provider no longer knows it; acquire another")


def _entry(record: dict[str, Any]) -> Entry:
    kind = _KINDS.get(record.get("type", ""), EntryKind.other)
    modified = str(record.get("modifiedTime", "1970-01-01T00:00:00Z"))
    return Entry(
        name=str(record.get("name", "")),
        kind=EntryKind.symlink if record.get("symlinkTarget") else kind,
        size=int(record.get("size", 0)),
        mode=int(record.get("mode", 0)) & 0o7777,
        modified=datetime.fromisoformat(modified[:19] + "+00:00").timestamp(),
    )
