"""Boxes of one pool: containers made ahead by a few threads; here they wait, are taken, are given back.

Guarantees: never more than `size` containers alive, those that do not want to end counted; a daemon that goes
away is told to whoever waits, and boxes come again when it is back.
Does not: survive this process. Its boxes end with their sockets, and the next `open` removes what is left."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import SandboxError, SandboxGone, SandboxUnavailable
from tiltyard.sandbox.native.box import Keeper, NativeBox
from tiltyard.sandbox.renewal import Renewals

from . import memory
from .box import DockerBox
from .container import Container, Maker, Recipe
from .daemon import Daemon

_MAKERS = min(8, 2 * (os.cpu_count() or 1))
_MAX_FAILURES = 3
_REST_SECONDS = (0.2, 1.0, 5.0)


class DockerSupply:
    """See `tiltyard.sandbox.backend.Supply`."""

    restarts = 0
    """the daemon is not ours to start"""

    def __init__(
        self,
        daemon: Daemon,
        recipe: Recipe,
        *,
        size: int,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._daemon = daemon
        self._recipe = recipe
        self._maker = Maker(daemon, recipe)
        self._size = size
        self._on_ready = on_ready
        self._on_fault = on_fault
        self._threads = ThreadPoolExecutor(_MAKERS, thread_name_prefix="docker-box")
        self._ready: deque[DockerBox] = deque()
        self._lent: set[DockerBox] = set()
        self._renewals = Renewals(self.take, self.discard)
        self._keeper = Keeper(
            self._died_of_memory,
            renew=self._renew,
            freeze=self._freeze,
            threads=max(1, round(recipe.limits.cpus)),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive = self._starting = self._failures = 0
        self._created = self._destroyed = self._failed = 0
        self._closing = False

    def start(self) -> None:
        self._refill()

    @property
    def drifted(self) -> int:
        return self._renewals.drifted

    def take(self) -> DockerBox | None:
        while self._ready:
            box = self._ready.popleft()
            self._lent.add(box)
            if box.is_alive():
                return box
            self.discard(box)
        return None

    def discard(self, box: Box) -> None:
        assert isinstance(box, DockerBox)
        if box in self._lent:
            self._lent.discard(box)
            self._end(box)

    async def counts(self) -> tuple[int, int, int, int]:
        return len(self._ready), self._created, self._destroyed, self._failed

    async def close(self) -> None:
        self._closing = True
        self._renewals.refuse(SandboxGone("the pool was closed"))
        for box in (*self._ready, *self._lent):
            self._end(box)
        self._ready.clear()
        self._lent.clear()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        await self._thread(self._maker.clear_debris)
        self._threads.shutdown()
        self._daemon.close()
        self._recipe.owner.leave()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _thread(self, work: Callable[..., Any], *given: object) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    def _refill(self) -> None:
        """One at a time while making fails: a daemon in trouble is not helped by more."""
        most = 1 if self._failures else _MAKERS
        while not self._closing and self._alive < self._size and self._starting < most:
            self._alive += 1
            self._starting += 1
            self._spawn(self._make())

    async def _make(self) -> None:
        if self._failures:
            await asyncio.sleep(_REST_SECONDS[min(self._failures, len(_REST_SECONDS)) - 1])
        try:
            container = None if self._closing else await self._thread(self._maker.make)
        except SandboxError as error:
            self._note_failure(error)
            container = None
        self._starting -= 1
        if container is None:
            self._alive -= 1
            self._refill()
            return
        self._failures = 0
        self._created += 1
        recipe = self._recipe
        box = DockerBox(self._created, container, recipe.image.path, recipe.runtime, self._keeper)
        if self._closing:
            self._end(box)
            return
        self._ready.append(box)
        self._refill()
        self._renewals.serve()
        self._on_ready()

    def _note_failure(self, error: SandboxError) -> None:
        self._failures += 1
        self._failed += 1
        if self._failures == _MAX_FAILURES or not self._created:
            self._renewals.refuse(error)
            self._on_fault(error)

    async def _renew(self, box: NativeBox) -> None:
        """The box goes on as one that nobody has used; its container goes first, so that never more than
        `size` are alive."""
        assert isinstance(box, DockerBox)
        if box not in self._lent:
            raise SandboxGone(f"box {box.id} is gone: it was released; acquire another")
        self.discard(box)
        fresh = await self._renewals.fresh()
        self._lent.discard(fresh)
        box.become(fresh)
        self._lent.add(box)

    async def _freeze(self, box: NativeBox, on: bool) -> None:
        """Its PID 1 stands still with it: what is asked of it meanwhile would wait."""
        assert isinstance(box, DockerBox)
        if box not in self._lent:
            raise SandboxGone(f"box {box.id} is gone: it was released; acquire another")
        await self._thread(partial(self._daemon.hold, box.container.id, pause=on))

    def _end(self, box: DockerBox) -> None:
        """Lets go of the socket, at which its PID 1 ends, and sees to it that it did."""
        box.close()
        self._spawn(self._destroy(box.container))

    async def _destroy(self, container: Container) -> None:
        tries = 0
        while not await self._thread(self._maker.destroy, container):
            tries += 1
            if tries == _MAX_FAILURES:
                self._on_fault(
                    SandboxUnavailable(
                        f"container {container.id[:12]} does not end: `docker inspect` it; its place in the "
                        "pool stays taken until it does"
                    )
                )
            if self._closing and tries >= _MAX_FAILURES:
                return
        self._destroyed += 1
        self._alive -= 1
        self._refill()

    async def _died_of_memory(self, box: NativeBox) -> bool:
        assert isinstance(box, DockerBox)
        known = memory.kills(box.container.kills)
        if known is not None:
            return known > 0
        try:
            return await self._thread(self._maker.died_of_memory, box.container)
        except SandboxUnavailable:
            return False
