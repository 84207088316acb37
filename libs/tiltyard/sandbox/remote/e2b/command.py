"""One command in an E2B sandbox, from its start to its end.

Guarantees: output is bounded while it comes; a command that is given up is killed, and its box told to be
spoiled, since what it started may live on.
Source: e2b-dev/E2B, spec/envd/process/process.proto (August 2026)."""

import asyncio
import base64
import math
import time
from contextlib import aclosing, suppress
from typing import Any

import httpx

from tiltyard.sandbox.errors import SandboxUnavailable
from tiltyard.sandbox.remote.api import Api
from tiltyard.sandbox.remote.fleet import Ended, Order
from tiltyard.sandbox.result import ExecOutcome

from .connect import STREAM, UNARY, Malformed, envelope, messages

_PING_SECONDS = 20
_SILENCE_SECONDS = 60.0
_GRACE_SECONDS = 5.0
_CHUNK = 1 << 20
_FILE_BLOCK = 512
_LIMITED = (
    'ulimit -t "$1" 2>/dev/null; ulimit -n "$2" 2>/dev/null; ulimit -f "$3" 2>/dev/null; shift 3; exec "$@"'
)
_SIGNALS = {
    **{"hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "aborted": 6, "bus error": 7},
    **{"floating point exception": 8, "killed": 9, "segmentation fault": 11, "broken pipe": 13},
    **{"alarm clock": 14, "terminated": 15, "CPU time limit exceeded": 24, "file size limit exceeded": 25},
    **{"bad system call": 31, "trace/breakpoint trap": 5},
}
"""As Go names them: envd is a Go program."""
_XCPU, _XFSZ = 24, 25
_CUT = "the connection to the sandbox was cut while the command ran"


class Unstarted(Exception):
    """The sandbox did not take it; nothing has run."""


class TooMuch(Exception):
    """It wrote more than it may."""


class Heard:
    """What a command wrote."""

    def __init__(self, order: Order) -> None:
        self.streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.seen = {"stdout": 0, "stderr": 0}
        self.cut = {"stdout": False, "stderr": False}
        self._order = order

    def add(self, data: dict[str, str]) -> None:
        """Raises TooMuch."""
        for stream in ("stdout", "stderr"):
            if stream not in data:
                continue
            chunk = base64.b64decode(data[stream])
            room = self._order.output_bytes - self.seen[stream]
            self.seen[stream] += len(chunk)
            if chunk[:room]:
                self._pass(stream, chunk[:room])
            if len(chunk) > room:
                self.cut[stream] = True
                raise TooMuch

    def _pass(self, stream: str, chunk: bytes) -> None:
        if self._order.on_output is not None:
            self._order.on_output("stdout" if stream == "stdout" else "stderr", chunk)
        else:
            self.streams[stream] += chunk


class Execution:
    """Runs one order."""

    def __init__(self, envd: Api, order: Order) -> None:
        self._envd = envd
        self._order = order
        self._heard = Heard(order)
        self._pid = 0
        self._feeding: asyncio.Task[None] | None = None
        self._began = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Whether envd said so."""
        return self._pid > 0

    async def run(self) -> Ended:
        """Raises Unstarted; whether the sandbox is gone, the caller finds out."""
        try:
            async with asyncio.timeout(self._order.wall_seconds):
                return await self._follow()
        except TimeoutError:
            await self._kill()
            return self._ended(
                ExecOutcome.timeout_wall, "ran out of time", spoiled="a command ran out of time"
            )
        except TooMuch:
            await self._kill()
            return self._ended(
                ExecOutcome.output_limit, "wrote more than it may", spoiled="a command wrote too much"
            )
        except asyncio.CancelledError:
            await asyncio.shield(self._kill())
            raise
        except (httpx.HTTPError, Malformed) as error:
            detail = self._envd.clean(f"{_CUT}: {type(error).__name__}: {error}")
            return self._ended(ExecOutcome.infra_error, detail, spoiled=_CUT)
        finally:
            if self._feeding is not None:
                self._feeding.cancel()

    async def _follow(self) -> Ended:
        headers = self._envd.headers(
            {
                **STREAM,
                "keepalive-ping-interval": str(_PING_SECONDS),
                "connect-timeout-ms": str(math.ceil((self._order.wall_seconds + _GRACE_SECONDS) * 1000)),
            }
        )
        url = self._envd.url("/process.Process/Start")
        silence = httpx.Timeout(_SILENCE_SECONDS)
        async with self._envd.client.stream(
            "POST", url, content=envelope(self._request()), headers=headers, timeout=silence
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
                raise Unstarted(str(self._envd.fault("POST", "/process.Process/Start", answer)))
            async with aclosing(messages(answer.aiter_bytes())) as heard:
                async for message in heard:
                    hear = self._hear_end if message.is_last else self._hear
                    if (ended := hear(message.document)) is not None:
                        return ended
        return self._ended(ExecOutcome.infra_error, _CUT, spoiled=_CUT)

    def _request(self) -> dict[str, Any]:
        order = self._order
        bounds = (
            str(math.ceil(order.cpu_seconds) + 1),
            str(order.limits.nofile),
            str(order.limits.file_bytes // _FILE_BLOCK),
        )
        process = {
            "cmd": "/bin/sh",
            "args": ["-c", _LIMITED, "sh", *bounds, *order.argv],
            "envs": dict(order.env),
            "cwd": order.cwd,
        }
        return {"process": process, "stdin": bool(order.stdin)}

    def _hear(self, document: dict[str, Any]) -> Ended | None:
        event = document.get("event", {})
        if "start" in event:
            self._pid = int(event["start"].get("pid", 0))
            if self._order.stdin:
                self._feeding = asyncio.get_running_loop().create_task(self._feed())
        elif "data" in event:
            self._heard.add(event["data"])
        elif "end" in event:
            return self._judge(event["end"])
        return None

    def _hear_end(self, document: dict[str, Any]) -> Ended:
        """The stream's own end, which comes instead of the command's."""
        error = document.get("error") or {}
        code, message = error.get("code", ""), self._envd.clean(str(error.get("message", "")))
        if not self.has_begun and code in ("invalid_argument", "not_found", "failed_precondition"):
            return self._ended(ExecOutcome.nonzero, f"could not be started: {message}", exit_code=127)
        if code == "deadline_exceeded":
            raise TimeoutError
        return self._ended(ExecOutcome.infra_error, f"{_CUT}: {code} {message}".strip(), spoiled=_CUT)

    def _judge(self, end: dict[str, Any]) -> Ended:
        code = int(end.get("exitCode", 0))
        if end.get("exited"):
            return self._ended(ExecOutcome.nonzero if code else ExecOutcome.ok, "", exit_code=code)
        said = str(end.get("status", "")).removeprefix("signal: ").removesuffix(" (core dumped)")
        number = _SIGNALS.get(said)
        if number == _XCPU:
            return self._ended(
                ExecOutcome.timeout_cpu, "one of its processes used its CPU time", number=number
            )
        if number == _XFSZ:
            return self._ended(ExecOutcome.disk_limit, "wrote a file above the largest size", number=number)
        return self._ended(ExecOutcome.signalled, said or "a signal", number=number)

    def _ended(
        self,
        outcome: ExecOutcome,
        detail: str,
        *,
        exit_code: int | None = None,
        number: int | None = None,
        spoiled: str = "",
    ) -> Ended:
        heard = self._heard
        return Ended(
            outcome=outcome,
            exit_code=exit_code,
            signal=number,
            stdout=bytes(heard.streams["stdout"]),
            stderr=bytes(heard.streams["stderr"]),
            stdout_truncated=heard.cut["stdout"],
            stderr_truncated=heard.cut["stderr"],
            wall_seconds=time.monotonic() - self._began,
            detail=detail,
            spoiled=spoiled,
        )

    async def _feed(self) -> None:
        """Its stdin; a command that does not want it has ended, or will."""
        who = {"process": {"pid": self._pid}}
        with suppress(SandboxUnavailable):
            for start in range(0, len(self._order.stdin), _CHUNK):
                part = base64.b64encode(self._order.stdin[start : start + _CHUNK]).decode()
                await self._rpc("SendInput", {**who, "input": {"stdin": part}})
            await self._rpc("CloseStdin", who)

    async def _kill(self) -> None:
        if self._pid:
            with suppress(SandboxUnavailable):
                await self._rpc("SendSignal", {"process": {"pid": self._pid}, "signal": "SIGNAL_SIGKILL"})

    async def _rpc(self, name: str, document: dict[str, Any]) -> None:
        await self._envd.call(
            "POST",
            f"/process.Process/{name}",
            again=False,
            headers=UNARY,
            json=document,
            timeout=_GRACE_SECONDS,
        )
