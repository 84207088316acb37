"""Sandboxes of a runner, borrowed over HTTP.

Guarantees: an order or a command whose answer was lost is repeated with its key, so it is not done twice; a
sandbox is given back at the end of its block.
Does not: keep a lease alive by itself: each call starts it anew, and `renew` does nothing else."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tiltyard.client.transport import Transport
from tiltyard.contracts.document import parse
from tiltyard.contracts.network import NONE, NetworkAccess
from tiltyard.contracts.sandboxes import (
    Command,
    CommandResult,
    ConnectionPage,
    LentConnection,
    LentSandbox,
    Renewal,
    SandboxOrder,
)

ROOT = "/v1/sandboxes"


class SandboxClient:
    """One runner that lends sandboxes.

    with SandboxClient("http://127.0.0.1:8082", token) as runner, runner.borrow() as box:
        box.write("main.py", b"print(6 * 7)")
        assert box.exec(["python3", "main.py"]).stdout == "42\\n"
    """

    def __init__(self, base_url: str, token: str) -> None:
        self._transport = Transport(base_url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    def borrow(
        self,
        *,
        lease_seconds: float = 60.0,
        wait_seconds: float = 30.0,
        network: NetworkAccess | None = None,
    ) -> "BorrowedSandbox":
        """A fresh sandbox, which reaches what `network` names, or nobody.

        Raises `ApiError` (503 when none became free, 403 when the runner lets nobody ask for such a
        network), `Unreachable`."""
        order = SandboxOrder(lease_seconds=lease_seconds, wait_seconds=wait_seconds, network=network or NONE)
        answer = self._transport.request("POST", ROOT, body=order.model_dump_json().encode())
        return BorrowedSandbox(self._transport, parse(LentSandbox, answer.json(), what=f"answer of {ROOT}"))


class BorrowedSandbox:
    """A sandbox until the end of its block, or of its lease."""

    def __init__(self, transport: Transport, lent: LentSandbox) -> None:
        self.lent = lent
        self._transport, self._path = transport, f"{ROOT}/{quote(lent.id)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        **limits: Any,
    ) -> CommandResult:
        """Run a command to its end; `limits` are those of `Command`, such as `cpu_seconds`.

        Raises `ApiError`: 409 while another command runs, 410 when the sandbox is gone."""
        command = Command(
            argv=tuple(argv), stdin=stdin, env=dict(env or {}), files=dict(files or {}), **limits
        )
        answer = self._transport.request(
            "POST", f"{self._path}/exec", body=command.model_dump_json().encode(), timeout=_patience(command)
        )
        return parse(CommandResult, answer.json(), what="answer of exec")

    def write(self, path: str, data: bytes) -> None:
        """Replace a file."""
        self._transport.request("PUT", self._file(path), body=data, kind="application/octet-stream")

    def read(self, path: str, max_bytes: int = 1_000_000) -> bytes:
        """A regular file's bytes."""
        return self._transport.request("GET", self._file(path), query={"max_bytes": max_bytes}).content

    def connections(self) -> tuple[LentConnection, ...]:
        """Every connection out of it that has ended, allowed or refused."""
        answer = self._transport.request("GET", f"{self._path}/connections")
        return parse(ConnectionPage, answer.json(), what="answer of connections").items

    def pause(self) -> None:
        """Stop what runs in it where it is; until `resume` commands and files are refused (409). Its lease
        goes on: renew it."""
        self._transport.request("POST", f"{self._path}/pause")

    def resume(self) -> None:
        """Let it go on."""
        self._transport.request("POST", f"{self._path}/resume")

    def renew(self, lease_seconds: float) -> None:
        body = Renewal(lease_seconds=lease_seconds).model_dump_json().encode()
        self._transport.request("POST", f"{self._path}/lease", body=body)

    def release(self) -> None:
        """Destroy it; a second time changes nothing."""
        self._transport.request("DELETE", self._path)

    def _file(self, path: str) -> str:
        return f"{self._path}/files/{quote(path)}"


def _patience(command: Command) -> float:
    """Seconds to wait for the answer: the command's own longest time, and some."""
    return 30.0 + (command.wall_seconds or 2 * command.cpu_seconds + 5)
