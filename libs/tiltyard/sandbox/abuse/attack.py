"""An attack, how it is made, and how it came out."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import CapabilityRefused, SandboxError, SandboxGone
from tiltyard.sandbox.pool import WarmPool
from tiltyard.sandbox.result import ExecOutcome, ExecResult

from .walls import Proof

_PATIENCE = 600.0
"""Seconds; an emulated machine is some twenty times slower."""
_SLOW = {"cpu_seconds": 100.0, "wall_seconds": 300.0}
"""What an attack that ends by itself may take there."""


class Verdict(StrEnum):
    """What became of an attack."""

    defended = "defended"
    """it was made and did no harm"""
    not_attackable = "not_attackable"
    """it cannot be made here; the detail says why"""
    cannot_defend = "cannot_defend"
    """it succeeds, and the backend says so; the detail is its reason"""
    broken = "broken"
    """it succeeded although the backend promises that it does not"""


class Unattackable(Exception):
    """Raised by an attack that cannot be made here; the message says why."""


class Breach(Exception):
    """Raised by an attack that succeeded; the message says how it was seen."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where attacks are made: a pool of boxes with `conformance.LIMITS`."""

    pool: WarmPool
    patience: float = 60.0
    """seconds to wait for several boxes at once"""

    async def exec(self, argv: list[str], **options: Any) -> ExecResult:
        """One command in a box of its own."""
        async with self.pool.acquire(timeout=_PATIENCE) as box:
            return await box.exec(argv, **{**_SLOW, **options})

    async def python(self, code: str, **options: Any) -> ExecResult:
        """One Python program in a box of its own."""
        async with self.pool.acquire(timeout=_PATIENCE) as box:
            return await python(box, code, **options)

    async def with_box(self, work: Callable[[Box], Awaitable[None]]) -> None:
        """`await work(box)` in a box of its own."""
        async with self.pool.acquire(timeout=_PATIENCE) as box:
            await work(box)


@dataclass(frozen=True, slots=True)
class Attack:
    """One row."""

    row: int
    name: str
    make: Callable[[Arena], Awaitable[None]]
    """raises Breach when it succeeds, Unattackable when it cannot be made"""
    proofs: tuple[Proof, ...] = ()
    """what stops it on the native backend: builds in which it succeeds"""
    beyond: str = ""
    """without a proof: why there is no such build"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one attack came out."""

    row: int
    attack: str
    verdict: Verdict
    detail: str
    """empty when it was defended"""
    stopped_by: str = ""
    """native: what it is that stops it, or why that cannot be left out in a test"""


async def python(box: Box, code: str, **options: Any) -> ExecResult:
    """One Python program in a box."""
    files = {"attack.py": code, **options.pop("files", {})}
    return await box.exec(["python3", "-I", "-S", "attack.py"], files=files, **{**_SLOW, **options})


def must(holds: bool, seen: object) -> None:
    """Raises Breach with what was seen."""
    if not holds:
        raise Breach(f"{seen!r}"[:400])


def must_end(result: ExecResult, *outcomes: ExecOutcome) -> None:
    must(result.outcome in outcomes, f"{result.outcome}: {result.detail} {result.stderr[-200:]!r}")


def must_say(result: ExecResult, wanted: str) -> None:
    """Raises Breach unless it ended well and said just that."""
    said = result.stdout.decode(errors="replace").strip()
    must(result.ok and said == wanted, f"{result.outcome}: {said!r} {result.stderr[-200:]!r}")


async def usable(box: Box) -> None:
    """A box that was attacked must still run what comes next."""
    must_say(await box.exec(["echo", "usable"]), "usable")


WENT = "the box ended with its memory"
"""What is seen of a box that the memory limit ends as a whole."""


async def went(box: Box, result: ExecResult) -> bool:
    """Whether the box ended with a command that was ended for memory; any other end of it is a breach."""
    try:
        await usable(box)
    except SandboxGone as gone:
        must(result.outcome is ExecOutcome.oom, f"{result.outcome}: {gone}")
        return True
    return False


def _never(name: str, seen: str) -> str:
    del name, seen
    return ""


async def assail(
    pool: WarmPool,
    attacks: Iterable[Attack],
    excuse: Callable[[str, str], str] = _never,
    *,
    patience: float = 60.0,
) -> AsyncIterator[Finding]:
    """Makes every attack. `excuse`: the backend's reason why it cannot defend one, from its name and what was
    seen; empty: it can."""
    arena = Arena(pool, patience)
    for attack in attacks:
        verdict, detail = await _make(attack, arena)
        if verdict is Verdict.broken and (reason := excuse(attack.name, detail)):
            verdict, detail = Verdict.cannot_defend, f"{reason} ({detail})"
        stopped_by = "; ".join(map(str, attack.proofs)) or attack.beyond
        yield Finding(
            row=attack.row, attack=attack.name, verdict=verdict, detail=detail, stopped_by=stopped_by
        )


async def _make(attack: Attack, arena: Arena) -> tuple[Verdict, str]:
    try:
        await asyncio.wait_for(attack.make(arena), _PATIENCE)
    except Unattackable as reason:
        return Verdict.not_attackable, str(reason)
    except CapabilityRefused as refusal:
        return Verdict.not_attackable, f"the backend refuses what the attack needs: {refusal}"
    except Breach as breach:
        return Verdict.broken, str(breach)
    except SandboxError as error:
        return Verdict.broken, f"the engine failed: {error}"
    except TimeoutError:
        return Verdict.broken, f"nothing ended it within {_PATIENCE:.0f} s"
    return Verdict.defended, ""
