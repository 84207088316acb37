"""Warm boxes: made ahead, lent one holder at a time, destroyed after.

Guarantees: each acquire gets a box that nobody used before; a released, cancelled or failed holder's box
is destroyed; who waits is served in order. Does not: reuse a box, or hold more than `size` at once."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .backend import Box, KeepingSupply, SandboxBackend, Supply
from .breaker import Breaker, BreakerPolicy
from .capability import Demand, require
from .errors import InvalidLimits, SandboxBusy, SandboxGone
from .health import Canary, PoolHealth, Watch
from .limits import Limits
from .native.backend import NativeBackend
from .network import Network, OnConnection, attached
from .snapshot import Snapshot

_START_SECONDS = 60.0
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool at one moment, and what it did since it started."""

    size: int
    ready: int
    lent: int
    created: int
    destroyed: int
    failed: int
    """boxes that could not be made"""
    restarts: int
    """times that the source of boxes died and was started anew"""
    drifted: int = 0
    """boxes that were found not to be pristine, by a reset or by the canary, and were destroyed"""


class _Waiter:
    __slots__ = ("count", "future")

    def __init__(self, count: int) -> None:
        self.count = count
        self.future: asyncio.Future[list[Box]] = asyncio.get_running_loop().create_future()


class WarmPool:
    """`size` boxes alive at once, made ahead from one image under one set of limits. For one event loop."""

    def __init__(
        self,
        *,
        image: str = "host",
        size: int = 8,
        limits: Limits = _DEFAULT_LIMITS,
        backend: SandboxBackend | None = None,
        max_reuses: int = 0,
        breaker: BreakerPolicy | None = None,
        canary: Canary | None = None,
    ) -> None:
        """`max_reuses`: how many boxes may use what is kept between boxes (native: a cell), 0: any number.
        `breaker`: when to lend none for a while. `canary`: what must say the same in every fresh box; None:
        nothing is asked."""
        if not 1 <= size <= 16_384:
            raise InvalidLimits(f"pool size is {size}: give 1 to 16384")
        self.size = size
        self.image = image
        self.limits = limits
        self.max_reuses = max_reuses
        self._backend = backend or NativeBackend()
        self._supply: Supply | None = None
        self._ready: deque[Box] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._lent = 0
        self._fault: Exception | None = None
        self._first: asyncio.Future[None] | None = None
        self._breaker = Breaker(breaker, clock=time.monotonic)
        self._watch = Watch(_Ward(self), self._breaker, canary)

    def require(self, demand: Demand) -> None:
        """Whether its boxes keep a demand, asked before there is one. Raises CapabilityRefused."""
        require(type(self._backend).__name__, self._backend.capabilities(), demand)

    async def start(self) -> None:
        """Starts making boxes and returns when the first is ready.

        Raises SandboxUnavailable, ImageFault, CapabilityRefused."""
        if self._supply is not None:
            return
        self._fault = None
        self._first = asyncio.get_running_loop().create_future()
        self._supply = await self._backend.open(
            image=self.image,
            size=self.size,
            limits=self.limits,
            max_reuses=self.max_reuses,
            on_ready=self._serve,
            on_fault=self._fail,
        )
        try:
            await asyncio.wait_for(self._first, _START_SECONDS)
        except TimeoutError as error:
            await self.close()
            raise SandboxBusy(
                f"no sandbox was ready after {_START_SECONDS:.0f} s: the host may be out of CPU"
            ) from error
        except BaseException:
            await self.close()
            raise
        self._watch.start()

    async def close(self) -> None:
        """Destroys every box, lent ones too, and waits until they are gone. Idempotent."""
        supply, self._supply = self._supply, None
        self._refuse(SandboxGone("the pool was closed"))
        try:
            await self._watch.stop()
        finally:
            if supply is not None:
                await asyncio.shield(supply.close())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def acquire(
        self,
        *,
        timeout: float | None = None,
        network: Network | None = None,
        on_connection: OnConnection | None = None,
    ) -> AbstractAsyncContextManager[Box]:
        """One fresh box, destroyed at the end.

        `network` None: it reaches nobody. `on_connection` gets a record of each connection out of it.
        Raises SandboxBusy after `timeout` seconds, SandboxUnavailable (NodeUnhealthy while the breaker is
        open), SandboxGone, CapabilityRefused when the backend has no networks."""
        loan = _SingleLoan(self, timeout)
        return loan if network is None else _connected(loan, network, on_connection)

    def acquire_many(
        self, count: int, *, timeout: float | None = None
    ) -> AbstractAsyncContextManager[list[Box]]:
        """Several fresh boxes, all or none, so that holders of one never wait for one another. Raises as
        `acquire`."""
        if not 1 <= count <= self.size:
            raise SandboxBusy(
                f"{count} boxes at once cannot come from a pool of {self.size}: make the pool larger"
            )
        return _Loan(self, count, timeout)

    @asynccontextmanager
    async def fork(
        self, snapshot: Snapshot, count: int = 1, *, timeout: float | None = None
    ) -> AsyncIterator[list[Box]]:
        """Fresh boxes that begin with a snapshot's files, all or none. Raises as `acquire`, `Box.restore`."""
        async with self.acquire_many(count, timeout=timeout) as boxes:
            await asyncio.gather(*(box.restore(snapshot) for box in boxes))
            yield boxes

    async def stats(self) -> PoolStats:
        supply = self._started()
        ready, created, destroyed, failed = await supply.counts()
        return PoolStats(
            size=self.size,
            ready=ready + len(self._ready),
            lent=self._lent,
            created=created,
            destroyed=destroyed,
            failed=failed,
            restarts=supply.restarts,
            drifted=self.drifted,
        )

    @property
    def drifted(self) -> int:
        """Boxes that were found not to be pristine, by a reset or by the canary, and were destroyed."""
        return self._watch.quarantined + (self._supply.drifted if self._supply else 0)

    def health(self) -> PoolHealth:
        """Whether boxes are lent and if not why, as the last look saw it."""
        return self._watch.health()

    async def examine(self) -> PoolHealth:
        """As `health`, but looks now, and asks the canary where the pool has one."""
        await self._watch.examine()
        return self.health()

    async def borrow(self, count: int, timeout: float | None) -> list[Box]:
        """Prefer `acquire`: what is borrowed must be given back by `give_back`."""
        if self._fault is not None:
            raise self._fault
        self._breaker.admit()
        try:
            return await self._borrow(count, timeout)
        except BaseException:
            self._breaker.withdraw()
            raise

    async def _borrow(self, count: int, timeout: float | None) -> list[Box]:
        supply = self._started()
        if self._fault is not None:
            raise self._fault
        if not self._waiters and (boxes := self._gather(supply, count)):
            return boxes
        waiter = _Waiter(count)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout):  # wait_for of 3.11 may swallow a cancellation
                return await waiter.future
        except TimeoutError as error:
            self._leave(waiter)
            raise SandboxBusy(
                f"no sandbox became free within {timeout} s: all {self.size} are lent"
            ) from error
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def give_back(self, boxes: list[Box]) -> None:
        """Destroys them; idempotent for a pool that was closed meanwhile. Never waits."""
        failed = sum(getattr(box, "faults", 0) > 0 for box in boxes)
        self._breaker.used(well=len(boxes) - failed, failed=failed)
        self._lent -= len(boxes)
        for box in boxes:
            if self._supply is not None:
                self._supply.discard(box)

    def _leave(self, waiter: _Waiter) -> None:
        """A waiter who goes away gives back what it was served but never saw, and makes room for the next."""
        served = waiter.future
        if served.done() and not served.cancelled() and served.exception() is None:
            self.give_back(served.result())
        served.cancel()
        self._serve()

    def _started(self) -> Supply:
        if self._supply is None:
            raise SandboxGone("the pool is not running: use `async with WarmPool(...)` or await start()")
        return self._supply

    def _gather(self, supply: Supply, count: int) -> list[Box] | None:
        while len(self._ready) < count and (box := supply.take()) is not None:
            self._ready.append(box)
        if len(self._ready) < count:
            return None
        self._lent += count
        return [self._ready.popleft() for _ in range(count)]

    def _serve(self) -> None:
        """Boxes have become ready: first come, first served."""
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        self._fault = None
        while self._waiters and self._supply is not None:
            waiter = self._waiters[0]
            if waiter.future.done():
                self._waiters.popleft()
                continue
            boxes = self._gather(self._supply, waiter.count)
            if boxes is None:
                return
            self._waiters.popleft()
            waiter.future.set_result(boxes)

    def _fail(self, error: Exception) -> None:
        """No box can be made any more."""
        self._fault = error
        self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
            self._first.exception()  # not every caller waits for it
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)


class _Ward:
    """What of a pool its watch may do."""

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool

    async def counts(self) -> tuple[int, int, int, int]:
        return await self._pool._started().counts()

    async def lend(self, timeout: float) -> Box:
        (box,) = await self._pool._borrow(1, timeout)
        return box

    def take_back(self, box: Box, *, quarantine: bool) -> None:
        self._pool._lent -= 1
        supply = self._pool._supply
        if quarantine and isinstance(supply, KeepingSupply):
            supply.quarantine(box)
        elif supply is not None:
            supply.discard(box)


class _Loan:
    """Boxes lent from `__aenter__` to `__aexit__`. Giving back never waits: nothing can interrupt it."""

    def __init__(self, pool: WarmPool, count: int, timeout: float | None) -> None:
        self._pool = pool
        self._count = count
        self._timeout = timeout
        self._boxes: list[Box] = []

    async def __aenter__(self) -> list[Box]:
        self._boxes = await self._pool.borrow(self._count, self._timeout)
        return self._boxes

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        boxes, self._boxes = self._boxes, []
        self._pool.give_back(boxes)


class _SingleLoan:
    """One box lent from `__aenter__` to `__aexit__`."""

    def __init__(self, pool: WarmPool, timeout: float | None) -> None:
        self._loan = _Loan(pool, 1, timeout)

    async def __aenter__(self) -> Box:
        (box,) = await self._loan.__aenter__()
        return box

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._loan.__aexit__(kind, error, trace)


@asynccontextmanager
async def _connected(
    loan: _SingleLoan, network: Network, on_connection: OnConnection | None
) -> AsyncIterator[Box]:
    async with loan as box, attached(box, network, on_connection=on_connection):
        yield box
