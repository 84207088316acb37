"""Boxes of one pool at a provider: created ahead, kept alive, destroyed, and swept.

Guarantees: never more than `size` alive that this process knows of, those under destruction counted; each
ends by itself soon after this process does; a sandbox of this owner that nobody holds is destroyed once two
sweeps have seen it.
Does not: wait for the provider in `discard`."""

import asyncio
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import (
    CapabilityRefused,
    ImageFault,
    SandboxError,
    SandboxGone,
    SandboxUnavailable,
)
from tiltyard.sandbox.limits import Limits

from .box import RemoteBox
from .fleet import Fleet, Guest, Owner

_STARTING = 4
_MAX_FAILURES = 3
_RESTS = (0.2, 0.5, 2.0, 10.0)
_CLOSE_SECONDS = 30.0


class RemoteSupply:
    """See `tiltyard.sandbox.backend.Supply`."""

    restarts = 0
    """the provider is not ours to start"""
    drifted = 0
    """a sandbox serves one box, and none is looked at before"""

    def __init__(
        self,
        fleet: Fleet,
        owner: Owner,
        keys: dict[str, str],
        *,
        size: int,
        limits: Limits,
        life_seconds: float,
        sweep_seconds: float,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        """`keys`: of what this incarnation of the owner holds, in whatever pool, and the sandbox of each;
        empty while it is being created."""
        self._fleet = fleet
        self._owner = owner
        self._keys = keys
        self._size = size
        self._limits = limits
        self._life = life_seconds
        self._sweep_every = sweep_seconds
        self._on_ready = on_ready
        self._on_fault = on_fault
        self._ready: deque[RemoteBox] = deque()
        self._lent: set[RemoteBox] = set()
        self._renewals: deque[asyncio.Future[RemoteBox]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._chores: list[asyncio.Task[None]] = []
        self._suspects: set[str] = set()
        self._alive = self._starting = self._failures = 0
        self._created = self._destroyed = self._failed = 0
        self._closing = False

    async def start(self) -> None:
        """Destroys what an earlier process of this owner left. Raises SandboxUnavailable."""
        left = [found for found in await self._fleet.owned() if found.incarnation != self._owner.incarnation]
        await asyncio.gather(*(self._fleet.destroy(found.id) for found in left))
        loop = asyncio.get_running_loop()
        self._chores = [loop.create_task(self._keep_alive()), loop.create_task(self._sweep())]
        self._refill()

    def take(self) -> Box | None:
        if not self._ready:
            return None
        box = self._ready.popleft()
        self._lent.add(box)
        return box

    def discard(self, box: Box) -> None:
        assert isinstance(box, RemoteBox)
        if box in self._lent:
            self._lent.discard(box)
            self._end(box)

    async def counts(self) -> tuple[int, int, int, int]:
        return len(self._ready), self._created, self._destroyed, self._failed

    async def close(self) -> None:
        self._closing = True
        for chore in self._chores:
            chore.cancel()
        for box in (*self._ready, *self._lent):
            self._end(box)
        self._ready.clear()
        self._lent.clear()
        self._refuse_renewals(SandboxGone("the pool was closed"))
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks), timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()  # their sandboxes end by themselves
        await asyncio.gather(*self._chores, *self._tasks, return_exceptions=True)
        await self._fleet.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refill(self) -> None:
        """One at a time while creating fails: a provider in trouble is not helped by more."""
        most = 1 if self._failures else _STARTING
        while not self._closing and self._alive < self._size and self._starting < most:
            self._alive += 1
            self._starting += 1
            self._spawn(self._make())

    async def _make(self) -> None:
        key = secrets.token_hex(10)
        self._keys[key] = ""
        if self._failures:
            await asyncio.sleep(_RESTS[min(self._failures, len(_RESTS)) - 1] * random.uniform(0.5, 1.0))
        began = time.monotonic()
        try:
            guest = await self._fleet.create(key, self._life)
        except SandboxError as error:
            del self._keys[key]  # what may have come of it after all, the sweep finds
            self._starting -= 1
            self._alive -= 1
            self._note_failure(error)
            return
        self._keys[key] = guest.id
        self._starting -= 1
        self._failures = 0
        self._created += 1
        box = self._box(key, guest)
        box.made_in = time.monotonic() - began
        if self._closing:
            await self._destroy(box)
            return
        self._offer(box)
        self._refill()

    def _offer(self, box: RemoteBox) -> None:
        """To a reset first: that holder has given up a box for it."""
        while self._renewals:
            waiter = self._renewals.popleft()
            if not waiter.done():
                self._lent.add(box)
                waiter.set_result(box)
                return
        self._ready.append(box)
        self._on_ready()

    def _note_failure(self, error: SandboxError) -> None:
        self._failed += 1
        self._failures += 1
        hopeless = isinstance(error, CapabilityRefused | ImageFault)
        if hopeless or self._failures >= _MAX_FAILURES:
            self._refuse_renewals(error)
            self._on_fault(error)
        if not hopeless:
            self._refill()

    def _refuse_renewals(self, error: Exception) -> None:
        while self._renewals:
            waiter = self._renewals.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _end(self, box: RemoteBox) -> None:
        box.lose("it was released")
        self._spawn(self._destroy(box))

    async def _destroy(self, box: RemoteBox) -> None:
        try:
            with suppress(SandboxUnavailable):  # the sweep tries again, and it ends by itself
                await self._fleet.destroy(box.guest.id)
        finally:
            self._keys.pop(box.key, None)
            self._alive -= 1
            self._destroyed += 1
            self._refill()

    async def _renew(self, box: RemoteBox) -> None:
        if box not in self._lent:
            raise SandboxGone(f"box {box.id} is gone: it was released; acquire another")
        self._lent.discard(box)
        old = self._box(box.key, box.guest)
        box.lose("it is being reset")
        self._end(old)
        fresh = await self._fresh()
        self._lent.discard(fresh)
        box.become(fresh)
        self._lent.add(box)

    def _box(self, key: str, guest: Guest) -> RemoteBox:
        fleet = self._fleet
        return RemoteBox(key, guest, self._limits, fleet.name, fleet.able, self._renew, self._hold)

    async def _hold(self, box: RemoteBox, pause: bool) -> None:
        if pause:
            await self._fleet.pause(box.guest.id)
        else:
            await self._fleet.resume(box.guest.id, self._life)

    async def _fresh(self) -> RemoteBox:
        if self._ready:
            return self._ready.popleft()
        waiter: asyncio.Future[RemoteBox] = asyncio.get_running_loop().create_future()
        self._renewals.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.discard(waiter.result())
            raise

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._life / 3)
            await asyncio.gather(*(self._keep(box) for box in (*self._ready, *self._lent)))

    async def _keep(self, box: RemoteBox) -> None:
        if box.paused:
            return  # it does not end while it rests
        try:
            await self._fleet.renew(box.guest.id, self._life)
        except SandboxGone as error:
            box.lose(str(error))
            if box in self._ready:
                self._ready.remove(box)
                self._end(box)
        except SandboxUnavailable:
            return  # two more tries until it ends

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_every)
            await self.sweep()

    async def sweep(self) -> None:
        """Destroys what this owner has and nobody holds, seen twice: an answer may still be on its way."""
        try:
            seen = await self._fleet.owned()
        except SandboxUnavailable:
            return
        strays = {found.id for found in seen if self._keys.get(found.key) not in ("", found.id)}
        for ident in strays & self._suspects:
            with suppress(SandboxUnavailable):  # it is seen again
                await self._fleet.destroy(ident)
        self._suspects = strays
