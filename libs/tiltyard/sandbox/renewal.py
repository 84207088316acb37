"""Boxes that go on as fresh ones.

Guarantees: a fresh box goes first to whoever gave one up for it; one that does not look as
the first fresh one did is destroyed, counted, and another takes its place.
Does not: destroy what the box was; who renews it does, before asking."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .backend import Box
from .errors import SandboxGone
from .pristine import Fingerprint, fingerprint

_MAX_DRIFTS = 5

B = TypeVar("B", bound=Box)


class Renewals(Generic[B]):
    """Those of one supply."""

    def __init__(
        self,
        take: Callable[[], B | None],
        discard: Callable[[B], None],
        give_up: Callable[[B], None] | None = None,
    ) -> None:
        """`take`: a box that nobody has used, None when there is none now. `give_up`: destroys one that was
        not pristine, with what it was made in; None: as `discard` does."""
        self.drifted = 0
        """fresh boxes that were not pristine"""
        self._take = take
        self._discard = discard
        self._give_up = give_up or discard
        self._waiting: deque[asyncio.Future[B]] = deque()
        self._pristine: Fingerprint | None = None

    async def fresh(self) -> B:
        """A box that is seen to be pristine. Raises SandboxGone."""
        drift: list[str] = []
        for _ in range(_MAX_DRIFTS):
            box = await self._next()
            drift = await self._look_at(box)
            if not drift:
                return box
            self.drifted += 1
            self._give_up(box)
        raise SandboxGone(
            f"no pristine box could be had in {_MAX_DRIFTS} tries; the last differed in {drift}"
        )

    def serve(self) -> None:
        """A box was just made: who gave one up comes first."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            box = self._take()
            if box is None:
                return
            self._waiting.popleft().set_result(box)

    def refuse(self, error: Exception) -> None:
        """No box can be had any more."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    async def _next(self) -> B:
        found = self._take()
        if found is not None:
            return found
        waiter: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._discard(waiter.result())
            raise

    async def _look_at(self, box: B) -> list[str]:
        """How a fresh box differs from the first that was looked at."""
        try:
            now = fingerprint(await box.survey())
        except BaseException:
            self._discard(box)
            raise
        if self._pristine is None and not now.blemishes():
            self._pristine = now
        return now.blemishes() or (self._pristine.drift(now) if self._pristine else [])
