"""A clock that moves when a test says so.

Guarantees: sleepers wake in order of their time, and only by `advance`.
Does not: replace the database's time; decisions in `core` take `now` as an argument."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Wall and monotonic time, and a `sleep` to hand to what would sleep for real."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._passed = 0.0
        self._skew = timedelta()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._order = count()

    def now(self) -> datetime:
        """Wall time, in UTC."""
        return self._start + timedelta(seconds=self._passed) + self._skew

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._passed

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as an operator or a time server does."""
        self._skew += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Return when `advance` has moved time so far."""
        if seconds <= 0:
            return
        event = asyncio.Event()
        heapq.heappush(self._sleepers, (self._passed + seconds, next(self._order), event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Move time, stopping at each sleeper so that it runs, and may sleep again, at its own time."""
        end = self._passed + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._passed, _, event = heapq.heappop(self._sleepers)
            event.set()
            await self._settle()
        self._passed = end

    async def _settle(self) -> None:
        for _ in range(10):  # lets woken coroutines run up to their next sleep
            await asyncio.sleep(0)
