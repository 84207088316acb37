"""One sandbox of agent-sandbox: its runtime, spoken to through the router.

Guarantees: bytes go in and come out as they are, though the runtime's own API carries text: a command runs
beneath a shell program that keeps its output in files and tells them in base64.
Does not: bound time above what router and runtime allow, stream, or reach files outside the runtime's folder.
Source: kubernetes-sigs/agent-sandbox, examples/python-runtime-sandbox and the router (August 2026)."""

import base64
import binascii
import builtins
import errno
import math
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from tiltyard.sandbox.errors import FileFault, FileTooLarge, InvalidExec, InvalidPath, SandboxGone
from tiltyard.sandbox.remote.api import Api, Refused, Unanswered
from tiltyard.sandbox.remote.fleet import Ended, Order
from tiltyard.sandbox.result import ExecOutcome
from tiltyard.sandbox.state import Entry, EntryKind

_PROGRAM = r"""
dir=$1 cwd=$2 wall=$3 most=$4 cpu=$5 nofile=$6 blocks=$7; shift 7
mkdir -p "$dir"; [ -e "$dir/in" ] || : >"$dir/in"
began=$(date +%s%N)
(
  cd "$cwd" 2>"$dir/err" || exit 127
  ulimit -t "$cpu"; ulimit -n "$nofile"; ulimit -f "$blocks"
  exec timeout -s KILL "$wall" "$@" <"$dir/in" >"$dir/out" 2>"$dir/err"
) 2>/dev/null &
group=$!
wait "$group"; code=$?
took=$(( ($(date +%s%N) - began) / 1000000 ))
kill -9 -- "-$group" 2>/dev/null
tell() { [ -e "$1" ] || : >"$1"; wc -c <"$1"; head -c "$most" "$1" | base64 | tr -d '\n'; echo; }
echo "tiltyard $code $took"; tell "$dir/out"; tell "$dir/err"
rm -rf "$dir"
"""
_LIST = r'find "$1" -mindepth 1 -maxdepth 1 -printf "%y %s %m %T@ %f\0" | base64 | tr -d "\n"'
_STAT = r'find "$1" -maxdepth 0 -printf "%y %s %m %T@ %f\0" | base64 | tr -d "\n"'
_KINDS = {"f": EntryKind.file, "d": EntryKind.folder, "l": EntryKind.symlink}
_KILLED = 137
_SIGNAL_BASE, _MOST_SIGNAL = 128, 64
_XCPU, _XFSZ = 24, 25
_FILE_BLOCK = 512
_MARGIN_SECONDS = 10.0
_CUT = "the connection to the sandbox was cut while the command ran"


class AgentSandboxGuest:
    """See `tiltyard.sandbox.remote.fleet.Guest`."""

    def __init__(
        self,
        ident: str,
        router: Api,
        home: str,
        is_there: Callable[[str], Awaitable[bool]],
        *,
        most_seconds: float,
    ) -> None:
        """`most_seconds`: how long router and runtime let a command run."""
        self.id = ident
        self.home = home
        self._router = router
        self._is_there = is_there
        self._most_seconds = most_seconds

    async def run(self, order: Order) -> Ended:
        if order.wall_seconds > self._most_seconds:
            raise InvalidExec(
                f"wall_seconds is {order.wall_seconds}: router and runtime let a command run for at most "
                f"{self._most_seconds} s; give less, or raise theirs and exec_seconds"
            )
        folder = f"{self.home}/.tiltyard-{secrets.token_hex(6)}"
        if order.stdin:
            await self.write(f"{folder}/in", order.stdin, 0o600)
        began = time.monotonic()
        try:
            said = await self._execute(_command(order, folder), order.wall_seconds + _MARGIN_SECONDS)
        except Unanswered as error:
            await self._look()
            return _lost(f"{_CUT}: {error}", time.monotonic() - began)
        return _read_end(order, said, time.monotonic() - began)

    async def write(self, path: str, data: bytes, mode: int) -> None:
        name = self._below(path)
        await self._file("POST", path, "/upload", files={"file": (name, data)})
        if mode != 0o644:
            await self._shell(["chmod", f"{mode:o}", path], path)

    async def read(self, path: str, most: int) -> bytes:
        url = self._router.url(f"/download/{quote(self._below(path), safe='')}")
        parts = bytearray()
        try:
            async with self._router.client.stream("GET", url, headers=self._router.headers()) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    await self._raise(path, self._router.fault("GET", "/download", answer))
                async for chunk in answer.aiter_bytes():
                    parts += chunk
                    if len(parts) > most:
                        raise FileTooLarge(f"{path!r} has more than the {most} bytes that were asked for")
        except httpx.HTTPError as error:
            await self._look()
            raise Unanswered(f"reading {path!r}: {type(error).__name__}: {error}") from error
        return bytes(parts)

    async def list(self, path: str) -> list[Entry]:
        return await self._look_up(_LIST, path)

    async def stat(self, path: str) -> Entry:
        (entry,) = await self._look_up(_STAT, path)
        return entry

    async def mkdir(self, path: str, mode: int) -> None:
        await self._shell(["mkdir", "-p", "-m", f"{mode:o}", path], path)

    async def _look_up(self, program: str, path: str) -> "builtins.list[Entry]":
        said = await self._shell(["sh", "-c", program, "sh", path], path)
        records = base64.b64decode(said).split(b"\0")[:-1]
        if not records and program == _STAT:
            raise FileFault(f"{path!r} is not there", errno.ENOENT)
        return [_entry(record) for record in records]

    async def _shell(self, argv: Sequence[str], path: str) -> str:
        """A short command of ours. Raises FileFault."""
        document = await self._execute(shlex.join(argv), 60.0)
        said = str(document.get("stderr", ""))
        if document.get("exit_code") or (not document.get("stdout") and said):
            error = errno.ENOENT if "No such file" in said else errno.EIO
            raise FileFault(f"{path!r} in the box: {self._router.clean(said)}", error)
        return str(document.get("stdout", ""))

    async def _execute(self, command: str, seconds: float) -> Mapping[str, object]:
        """Not asked twice: a command may have run. Raises Unanswered, SandboxGone."""
        timeout = {"x-sandbox-timeout": str(math.ceil(seconds))}
        try:
            answer = await self._router.call(
                "POST", "/execute", again=False, json={"command": command}, headers=timeout, timeout=seconds
            )
            return answer.json()
        except ValueError as error:
            raise Unanswered("the runtime's answer is no JSON") from error
        except Refused as error:
            await self._look()
            raise Unanswered(str(error)) from error

    async def _file(self, method: str, path: str, where: str, **options: Any) -> None:
        try:
            await self._router.call(method, where, again=True, **options)
        except (Refused, Unanswered) as fault:
            await self._raise(path, fault)

    async def _raise(self, path: str, fault: Exception) -> None:
        status = fault.status if isinstance(fault, Refused) else 0
        await self._look()
        if status in (403, 404):
            error = errno.ENOENT if status == 404 else errno.EACCES
            raise FileFault(f"{path!r} in the box: {fault}", error) from fault
        raise fault

    async def _look(self) -> None:
        """Raises SandboxGone when the cluster knows it no more."""
        if not await self._is_there(self.id):
            raise SandboxGone(f"claim {self.id} is gone: it was deleted or has expired; acquire another")

    def _below(self, path: str) -> str:
        if not path.startswith(f"{self.home}/"):
            raise InvalidPath(f"path {path!r}: the runtime reaches files below {self.home} alone")
        return path[len(self.home) + 1 :]


def _command(order: Order, folder: str) -> str:
    """One line for the runtime, which splits it as a shell would and starts it without one."""
    bounds = (
        *(folder, order.cwd, f"{order.wall_seconds:.3f}", str(order.output_bytes)),
        *(str(math.ceil(order.cpu_seconds) + 1), str(order.limits.nofile)),
        str(order.limits.file_bytes // _FILE_BLOCK),
    )
    variables = [f"{name}={value}" for name, value in order.env.items()]
    return shlex.join(["env", *variables, "sh", "-c", _PROGRAM, "sh", *bounds, *order.argv])


def _lost(detail: str, seconds: float) -> Ended:
    return Ended(outcome=ExecOutcome.infra_error, wall_seconds=seconds, detail=detail, spoiled=_CUT)


def _read_end(order: Order, said: Mapping[str, object], seconds: float) -> Ended:
    """What our program told of the command's end."""
    lines = str(said.get("stdout", "")).split("\n")
    try:
        mark, code, took = lines[0].split(" ")
        sizes = [int(lines[1]), int(lines[3])]
        out, err = (base64.b64decode(lines[at], validate=True) for at in (2, 4))
        if mark != "tiltyard":
            raise ValueError(mark)
    except (ValueError, IndexError, binascii.Error):
        return _lost(f"the runtime could not run the command: {str(said.get('stderr', ''))[:200]}", seconds)
    cut = [size > order.output_bytes for size in sizes]
    outcome, exit_code, number, detail = _judge(order, int(code), int(took) / 1000, any(cut))
    return Ended(
        outcome=outcome,
        exit_code=exit_code,
        signal=number,
        stdout=out,
        stderr=err,
        stdout_truncated=cut[0],
        stderr_truncated=cut[1],
        wall_seconds=int(took) / 1000,
        detail=detail,
        spoiled="a command ran out of time" if outcome is ExecOutcome.timeout_wall else "",
    )


def _judge(
    order: Order, code: int, took: float, is_cut: bool
) -> tuple[ExecOutcome, int | None, int | None, str]:
    """Outcome, exit code, signal, one line for people."""
    if code == _KILLED and took >= order.wall_seconds:
        return ExecOutcome.timeout_wall, None, 9, "ran out of time"
    if is_cut:
        return ExecOutcome.output_limit, None, None, "wrote more than it may"
    if _SIGNAL_BASE < code <= _SIGNAL_BASE + _MOST_SIGNAL:
        number = code - _SIGNAL_BASE
        if number == _XCPU:
            return ExecOutcome.timeout_cpu, None, number, "one of its processes used its CPU time"
        if number == _XFSZ:
            return ExecOutcome.disk_limit, None, number, "wrote a file above the largest size"
        return ExecOutcome.signalled, None, number, f"signal {number}"
    return (ExecOutcome.nonzero if code else ExecOutcome.ok), code, None, ""


def _entry(record: bytes) -> Entry:
    kind, size, mode, modified, name = record.split(b" ", 4)
    return Entry(
        name=name.decode(errors="surrogateescape"),
        kind=_KINDS.get(kind.decode(), EntryKind.other),
        size=int(size),
        mode=int(mode, 8),
        modified=float(modified),
    )
