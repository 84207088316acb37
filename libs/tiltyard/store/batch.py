"""Many small commits as few transactions.

Guarantees: items that arrive while a transaction runs become the next one, at most `limit` of them; an item
that spoils its transaction does not fail the others.
Does not: retry while the database is away."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

T = TypeVar("T")
R = TypeVar("R")
UNAVAILABLE = (OperationalError, InterfaceError, OSError)
"""The database is away, or took a deadlock's victim: the same work may be tried again."""


class Batch(Generic[T, R]):
    """Collects items, and hands them to `flush` together; `flush` gives one result for each, in order.

    The first item waits `linger` seconds for others, unless `limit` of them are there."""

    def __init__(
        self,
        flush: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        limit: int = 128,
        linger: float = 0.0,
    ) -> None:
        self._flush, self._limit, self._linger = flush, limit, linger
        self._full = asyncio.Event()
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """The item's result; raises what its transaction raised."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._waiting) >= self._limit:
            self._full.set()
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            if self._linger and len(self._waiting) < self._limit:
                self._full.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._linger)
            count = min(self._limit, len(self._waiting))
            await self._settle([self._waiting.popleft() for _ in range(count)])

    async def _settle(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._flush([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - whoever submitted the item judges its failure
            if len(batch) > 1 and not isinstance(error, UNAVAILABLE):
                for one in batch:
                    await self._settle([one])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
