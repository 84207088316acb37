"""Jobs of one kind in this process: claimed under leases, done at once, released on the way out.

Guarantees: never more jobs than the window; a lease is renewed while its job runs, and a job whose lease
was lost is stopped; what is not done when the process leaves is given back.
Does not: know what a job is (`grader`, `admitter`), or when to look (`worker`, `celery`)."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from tiltyard.store.batch import UNAVAILABLE
from tiltyard.telemetry.events import event_logger

log = event_logger("evaluator")
TERM = timedelta(seconds=60)
RENEW_SECONDS = 15.0
BATCH = 32
"""Rows of one claim."""


class Claimed(Protocol):
    """A row under the number of its claim."""

    @property
    def id(self) -> str: ...


C = TypeVar("C", bound=Claimed)


class Kind(Protocol[C]):
    """What one kind of job does with its rows."""

    name: str

    async def claim(self, limit: int) -> Sequence[C]: ...

    async def do(self, job: C) -> None:
        """Do the job and commit it; raises nothing but cancellation."""
        ...

    async def renew(self, jobs: Sequence[C]) -> set[str]:
        """Ids that are still held."""
        ...

    async def release(self, jobs: Sequence[C]) -> None: ...


class Desk(Generic[C]):
    """The jobs of one kind that are under way."""

    def __init__(self, kind: Kind[C], window: int) -> None:
        self.kind, self.window = kind, window
        self._open: dict[str, tuple[C, asyncio.Task[None]]] = {}
        self._claiming = asyncio.Lock()
        self._changed = asyncio.Event()
        self._leaving = False
        self._renewed = time.monotonic()

    async def pull(self, limit: int = BATCH) -> list[asyncio.Task[None]]:
        """Claim what fits in the window, at most `limit`, and start it; none while leaving."""
        async with self._claiming:
            free = 0 if self._leaving else min(limit, self.window - len(self._open))
            claimed = await self.kind.claim(free) if free > 0 else []
            return [self._start(job) for job in claimed]

    def _start(self, job: C) -> asyncio.Task[None]:
        task = asyncio.create_task(self.kind.do(job), name=f"{self.kind.name} {job.id}")
        self._open[job.id] = (job, task)
        task.add_done_callback(lambda _: self._close(job, task))
        return task

    def _close(self, job: C, task: asyncio.Task[None]) -> None:
        if self._open.get(job.id, (None, None))[1] is task:
            del self._open[job.id]
        self._changed.set()

    async def room(self) -> None:
        """Wait until the window has room for a batch that is worth a claim."""
        while self.window - len(self._open) < min(BATCH, max(1, self.window // 2)):
            self._changed.clear()
            await self._changed.wait()

    async def keep_leases(self) -> None:
        """Renew for ever."""
        self._renewed = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._renew()

    async def _renew(self) -> None:
        before = dict(self._open)
        try:
            held = await self.kind.renew([job for job, _ in before.values()]) if before else set[str]()
            self._renewed = time.monotonic()
        except UNAVAILABLE as error:
            log.warning("lease.unrenewed", kind=self.kind.name, error=str(error))
            if time.monotonic() - self._renewed < TERM.total_seconds():
                return
            held = set()
        for id_, (_, task) in before.items():
            if id_ not in held and not task.done():
                log.warning("lease.lost", kind=self.kind.name, id=id_)
                task.cancel()

    async def leave(self, grace_seconds: float) -> None:
        """Let what is under way end within the grace; stop the rest and give it back."""
        self._leaving = True
        async with self._claiming:
            if self._open:
                await asyncio.wait([task for _, task in self._open.values()], timeout=grace_seconds)
            rest = dict(self._open)
            for _, task in rest.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in rest.values()), return_exceptions=True)
            if rest:
                await self.kind.release([job for job, _ in rest.values()])
