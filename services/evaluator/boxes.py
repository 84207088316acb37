"""Sandboxes for gradings: one warm pool for each shape of sandbox that tasks ask for.

Guarantees: every box is fresh, and gone when its block ends; at most `size` boxes of a shape live at once.
What reaches a network does so through a proxy of this process, and each connection is a span of the grading.
Does not: keep pools of shapes that nobody used lately: beyond `SHAPES` the least recently used idle one is
closed."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiltyard.contracts.network import NetworkAccess, NetworkDemand
from tiltyard.sandbox import Box, Limits, NativeBackend, SandboxBackend, WarmPool
from tiltyard.sandbox.capability import Demand, require
from tiltyard.sandbox.network import NOWHERE, OnConnection, Permission, attached, connection_spans

SHAPES = 8
"""Pools kept at once."""
COMMON = Limits(memory_mb=256, pids=64, cpus=1.0, disk_mb=64)
"""What a task gets that asks for nothing."""


@dataclass
class _Pool:
    pool: WarmPool
    started: asyncio.Task[None]
    users: int = 0


class Boxes:
    """Lends boxes by shape."""

    def __init__(
        self, size: int, *, permission: Permission = NOWHERE, backend: SandboxBackend | None = None
    ) -> None:
        """`permission`: the hosts that tasks may ask for."""
        if size < 2:
            raise ValueError(f"a grading needs two sandboxes at once: {size} is too few")
        self._size, self._permission, self._backend = size, permission, backend or NativeBackend()
        self._pools: OrderedDict[Limits, _Pool] = OrderedDict()

    async def prove(self) -> None:
        """Make one sandbox of a common shape. Raises `SandboxUnavailable`, naming the cure."""
        async with self.some(1, COMMON):
            pass

    @asynccontextmanager
    async def some(self, count: int, shape: Limits) -> AsyncIterator[tuple[Box, ...]]:
        """`count` fresh boxes, taken together. Raises `SandboxError`."""
        entry = await self._entry(shape)
        entry.users += 1
        try:
            await asyncio.shield(entry.started)
            async with entry.pool.acquire_many(count) as boxes:
                yield tuple(boxes)
        finally:
            entry.users -= 1
            if entry.started.done() and entry.started.exception() is not None:
                self._pools.pop(shape, None)

    def check(self, demand: NetworkDemand) -> None:
        """Whether boxes can reach what a task asks for, before there is one.

        Raises NetworkRefused, InvalidNetwork, CapabilityRefused."""
        if isinstance(demand, NetworkAccess):
            self._permission.grant(demand)
            require(type(self._backend).__name__, self._backend.capabilities(), Demand.ports)

    @asynccontextmanager
    async def reaching(
        self, box: Box, demand: NetworkDemand, *, whose: str, note: OnConnection
    ) -> AsyncIterator[None]:
        """A box that reaches what was asked for, and nothing else. `whose` code runs in it; `note` is told of
        each connection. Raises as `check`, and PortClosed, SandboxGone."""
        if not isinstance(demand, NetworkAccess):
            yield
            return
        spans = connection_spans(note, whose=whose)
        async with attached(box, self._permission.grant(demand), on_connection=spans):
            yield

    async def _entry(self, shape: Limits) -> _Pool:
        entry = self._pools.get(shape)
        if entry is None:
            await self._make_room()
            pool = WarmPool(size=self._size, limits=shape, backend=self._backend)
            entry = self._pools[shape] = _Pool(pool=pool, started=asyncio.create_task(pool.start()))
        self._pools.move_to_end(shape)
        return entry

    async def _make_room(self) -> None:
        idle = [shape for shape, entry in self._pools.items() if entry.users == 0]
        if len(self._pools) >= SHAPES and idle:
            await self._pools.pop(idle[0]).pool.close()

    async def close(self) -> None:
        """Destroy every box."""
        while self._pools:
            _, entry = self._pools.popitem()
            await asyncio.wait([entry.started])
            await entry.pool.close()
