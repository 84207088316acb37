"""Blocking work of many coroutines, done by few threads, many pieces at a time.

Guarantees: pieces that wait together are handed over together, and their results come back together, so that
a piece costs no waking of its own; what a piece raises is raised by its own caller.
Does not: stop a piece that a thread has begun when its caller is cancelled, or order pieces."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

T = TypeVar("T")
FEWEST, MOST = 4, 16
"""Pieces of one handing-over: fewer are not split over threads, and no thread is given more."""


@dataclass(slots=True)
class _Piece:
    """Something to do, and who waits for it."""

    work: Callable[[], Any]
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = field(default=None)

    def do(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:  # noqa: BLE001 - its caller judges it
            self.error = error

    def settle(self) -> None:
        if self.future.done():  # its caller has gone
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Crew:
    """A few threads for the coroutines of one event loop."""

    def __init__(self, threads: int, *, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._idle = threads
        self._waiting: deque[_Piece] = deque()
        self._soon = False

    async def do(self, work: Callable[[], T]) -> T:
        """What `work` gives; it runs in one of the threads."""
        loop = asyncio.get_running_loop()
        piece = _Piece(work, loop.create_future())
        self._waiting.append(piece)
        if not self._soon and self._idle:
            self._soon = True
            loop.call_soon(self._hand_over, loop)  # together with whatever comes in the same turn
        return await piece.future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._soon = False
        while self._waiting and self._idle:
            share = min(MOST, max(FEWEST, -(-len(self._waiting) // self._idle)))
            pieces = [self._waiting.popleft() for _ in range(min(share, len(self._waiting)))]
            self._idle -= 1
            self._pool.submit(self._carry_out, loop, [p for p in pieces if not p.future.done()])

    def _carry_out(self, loop: asyncio.AbstractEventLoop, pieces: Sequence[_Piece]) -> None:
        for piece in pieces:
            piece.do()
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(self._hand_back, loop, pieces)

    def _hand_back(self, loop: asyncio.AbstractEventLoop, pieces: Sequence[_Piece]) -> None:
        self._idle += 1
        for piece in pieces:
            piece.settle()
        self._hand_over(loop)

    def close(self) -> None:
        """Wait for what the threads have begun."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
