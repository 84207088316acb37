"""How well a machine makes boxes: watched while a pool is open, tried by a canary, told in one answer.

Guarantees: what failed and the kernel's pressure reach the breaker within `_LOOK_SECONDS`; a box whose canary
says something new is destroyed with whatever is kept for the next, counted, and replaced.
Does not: cure. What to do stands in the reason, and in `tiltyard sandbox doctor`."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .backend import Box
from .breaker import Breaker, BreakerState
from .errors import SandboxError
from .result import ExecOutcome

_LOOK_SECONDS = 1.0
_PRESSURE = Path("/proc/pressure")
_LINES = {"cpu": "some", "memory": "full", "io": "full"}
_LEND_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A command that must say the same in every box that nobody has used."""

    argv: Sequence[str] = ("sh", "-c", "id -u; pwd; umask; env | sort; ls -A /box /tmp /dev/shm")
    every_seconds: float = 30.0
    cpu_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHealth:
    """A pool and its machine at one moment."""

    state: BreakerState
    reason: str
    """why no box is lent, or only one to try; empty while all is well"""
    since: float | None
    """seconds since 1970; None while all is well"""
    retry_in: float
    """seconds until it is tried again; 0 when asking is allowed"""
    succeeded: int
    """boxes that were made, or served, within the breaker's window"""
    failed: int
    pressure: dict[str, float]
    """percent of the last ten seconds, by resource; empty where the kernel does not tell (no PSI)"""
    canaries: int
    """times that the canary was asked"""
    quarantined: int
    """boxes that it found changed"""
    drift: str
    """what the last of them said instead; empty: none did"""


class Ward(Protocol):
    """What of a pool is watched."""

    async def counts(self) -> tuple[int, int, int, int]:
        """Boxes ready, created, destroyed, failed to start."""
        ...

    async def lend(self, timeout: float) -> Box:
        """A box that nobody has used, whatever the breaker says."""
        ...

    def take_back(self, box: Box, *, quarantine: bool) -> None:
        """Destroys it; `quarantine`: with whatever is kept for the next."""
        ...


def pressure(folder: Path = _PRESSURE) -> dict[str, float]:
    """Percent of the last ten seconds in which some (cpu) or all (memory, io) of the work stood still."""
    found: dict[str, float] = {}
    for resource, line in _LINES.items():
        with suppress(OSError, ValueError):
            for words in map(str.split, (folder / resource).read_text().splitlines()):
                if words[0] == line:
                    found[resource] = float(words[1].removeprefix("avg10="))
    return found


class Watch:
    """Looks at one pool once a second, for as long as it is open."""

    def __init__(
        self,
        ward: Ward,
        breaker: Breaker,
        canary: Canary | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ward = ward
        self._breaker = breaker
        self._canary = canary
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._created = self._failed = 0
        self._pressure: dict[str, float] = {}
        self._next_canary = clock() + (canary.every_seconds if canary else 0)
        self._song = b""
        self._canaries = 0
        self.quarantined = 0
        """boxes that the canary found changed"""
        self._drift = ""

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_on())

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()
            if self._canary is not None and self._clock() >= self._next_canary:
                self._next_canary = self._clock() + self._canary.every_seconds
                await self.sing(self._canary)

    async def examine(self) -> None:
        """Looks and sings now."""
        await self.look()
        if self._canary is not None:
            await self.sing(self._canary)

    async def look(self) -> None:
        """Takes note of what was made and failed since the last look, and of the pressure."""
        counts = await _answered(self._ward.counts())
        if counts is not None:
            _, created, _, failed = counts
            well, bad = max(0, created - self._created), max(0, failed - self._failed)
            self._created, self._failed = created, failed
            if well or bad:
                self._breaker.made(well=well, failed=bad)
        self._pressure = pressure()
        self._breaker.press(self._pressure)

    async def sing(self, canary: Canary) -> bool:
        """Asks the canary in a fresh box; whether it said what it always says. True where there is no box to
        be had: that is the breaker's concern."""
        try:
            box = await self._ward.lend(_LEND_SECONDS)
        except SandboxError:
            return True
        drift = "the canary was interrupted"
        try:
            drift = await self._hear(box, canary)
        finally:
            self._ward.take_back(box, quarantine=bool(drift))
        if drift:
            self.quarantined += 1
            self._drift = drift
        return not drift

    async def _hear(self, box: Box, canary: Canary) -> str:
        """How its answer differs from the first one; empty when it does not."""
        self._canaries += 1
        try:
            result = await box.exec(list(canary.argv), cpu_seconds=canary.cpu_seconds)
        except SandboxError as error:
            return str(error)
        if result.outcome is ExecOutcome.infra_error:
            return f"{result.outcome}: {result.detail}"
        song = f"{result.outcome} {result.exit_code}\n".encode() + result.stdout + result.stderr
        self._song = self._song or song
        if song == self._song:
            return ""
        digests = (hashlib.sha256(each).hexdigest()[:12] for each in (self._song, song))
        return "{} → {}: ".format(*digests) + repr(song[-200:])

    def health(self) -> PoolHealth:
        report = self._breaker.report()
        since = None if report.since is None else time.time() - (self._clock() - report.since)
        return PoolHealth(
            state=report.state,
            reason=report.reason,
            since=since,
            retry_in=report.retry_in,
            succeeded=report.succeeded,
            failed=report.failed,
            pressure=dict(self._pressure),
            canaries=self._canaries,
            quarantined=self.quarantined,
            drift=self._drift,
        )


async def _answered(counting: Awaitable[tuple[int, int, int, int]]) -> tuple[int, int, int, int] | None:
    """None: whoever counts went away while it was asked, which cancels the answer and not this task."""
    try:
        return await counting
    except SandboxError:
        return None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None
