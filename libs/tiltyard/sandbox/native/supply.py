"""Boxes of one pool: tilt-host makes them ahead and hands each over ready; here they wait, are taken, are
given back.

Guarantees: a box that was taken is destroyed by `discard` or by this process's death, whichever comes
first; when tilt-host dies its boxes die too and a new one is started, at most `_MAX_RESTARTS` times a
minute."""

import asyncio
import errno
import os
import signal
import time
from collections import deque
from collections.abc import Callable

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import CapabilityRefused, SandboxGone, SandboxUnavailable
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.renewal import Renewals

from . import wire
from .box import Keeper, NativeBox
from .host import HostLink
from .image import Image
from .toolchain import Helpers

_MAX_RESTARTS = 3
_MAX_FAILURES = 5
_MINUTE = 60.0
_LOST_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_FREEZE_SECONDS = 10.0


class NativeSupply:
    """See `tiltyard.sandbox.backend.Supply`."""

    def __init__(
        self,
        image: Image,
        *,
        size: int,
        limits: Limits,
        max_reuses: int,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
        helpers: Helpers | None = None,
    ) -> None:
        self._image = image
        self._helpers = helpers
        self._on_ready = on_ready
        self._on_fault = on_fault
        self._request = wire.pool_request(
            size=size,
            starting=min(size, 2 * (os.cpu_count() or 1)),
            limits=limits,
            image=image.digest,
            reuses=max_reuses,
        )
        self._link = HostLink(self._hear, self._ended)
        self._ready: deque[NativeBox] = deque()
        self._lent: dict[tuple[int, int], NativeBox] = {}
        self._lost: dict[tuple[int, int], asyncio.Future[bool]] = {}
        self._freezing: dict[tuple[int, int], asyncio.Future[int]] = {}
        self._keeper = Keeper(
            died_of_memory=self._died_of_memory,
            renew=self._renew,
            freeze=self._freeze,
            threads=max(1, round(limits.cpus)),
        )
        self._renewals = Renewals[NativeBox](
            self.take, self.discard, give_up=lambda box: self._destroy(box, retire=True)
        )
        self._counts: list[asyncio.Future[wire.HostEvent]] = []
        self._deaths: deque[float] = deque()
        self._failures = 0
        self._made = False
        self._closing = False
        self.restarts = 0

    def start(self) -> None:
        """Raises SandboxUnavailable."""
        self._link.start(self._image.store, self._request, self._helpers)

    @property
    def drifted(self) -> int:
        return self._renewals.drifted

    def take(self) -> NativeBox | None:
        while self._ready:
            box = self._ready.popleft()
            self._lent[box.cell, box.life] = box
            if box.is_alive():
                return box
            self.discard(box)
        return None

    def discard(self, box: Box) -> None:
        """Both ends let go: tilt-host kills the box's PID 1, and tilt-init would end by itself."""
        self._destroy(box, retire=False)

    def quarantine(self, box: Box) -> None:
        """See `tiltyard.sandbox.backend.KeepingSupply`."""
        self._destroy(box, retire=True)

    def _destroy(self, box: Box, *, retire: bool) -> None:
        """`retire`: nor is its cell used again."""
        assert isinstance(box, NativeBox)
        if self._lent.pop((box.cell, box.life), None) is not None:
            self._link.ask(wire.kill_request(box.cell, box.life, retire=retire))
            box.close()

    async def _renew(self, box: NativeBox) -> None:
        """The box goes on as one that nobody has used; what it was is destroyed first, so that the number
        of boxes stays as it is."""
        if (box.cell, box.life) not in self._lent:
            raise SandboxGone(f"box {box.id} is gone: it was released; acquire another")
        self.discard(box)
        fresh = await self._renewals.fresh()
        self._lent.pop((fresh.cell, fresh.life), None)
        box.become(fresh)
        self._lent[box.cell, box.life] = box

    async def _freeze(self, box: NativeBox, on: bool) -> None:
        key = box.cell, box.life
        if key not in self._lent:
            raise SandboxGone(f"box {box.id} is gone: it was released; acquire another")
        answer = self._freezing[key] = asyncio.get_running_loop().create_future()
        doing = f"box {box.id} cannot be {'paused' if on else 'resumed'}"
        try:
            if not self._link.ask(wire.freeze_request(*key, on=on)):
                raise SandboxUnavailable(f"{doing}: tilt-host does not listen; try again, or give it back")
            async with asyncio.timeout(_FREEZE_SECONDS):
                error = await answer
        except TimeoutError as late:
            raise SandboxUnavailable(f"{doing}: tilt-host did not answer; give it back") from late
        finally:
            self._freezing.pop(key, None)
        if error == errno.ENOTSUP:
            raise CapabilityRefused(f"{doing}: this host has neither cgroup2 nor the freezer of v1")
        if error == errno.ESRCH:
            raise SandboxGone(f"box {box.id} is gone; acquire another")
        if error:
            raise SandboxUnavailable(f"{doing}: {os.strerror(error)}; try again, or give it back")

    async def counts(self) -> tuple[int, int, int, int]:
        answer: asyncio.Future[wire.HostEvent] = asyncio.get_running_loop().create_future()
        self._counts.append(answer)
        if not self._link.ask(wire.STATS_REQUEST):
            self._counts.remove(answer)
            return len(self._ready), 0, 0, 0
        event = await answer
        return len(self._ready), event.created, event.destroyed, event.failed

    async def close(self) -> None:
        self._closing = True
        self._renewals.refuse(SandboxGone("the pool was closed"))
        for box in (*self._ready, *self._lent.values()):
            box.close()
        self._ready.clear()
        self._lent.clear()
        await asyncio.shield(self._link.close())

    def _hear(self, event: wire.HostEvent, fd: int) -> None:
        if event.op == wire.Event.box and fd < 0:
            self._lose_unseen(event)
        elif event.op == wire.Event.box and self._closing:
            os.close(fd)
        elif event.op == wire.Event.box:
            self._failures = 0
            self._made = True
            box = NativeBox(event.cell, event.life, fd, self._image.path, self._keeper)
            box.made_in = event.made_ns / 1e9
            self._ready.append(box)
            self._renewals.serve()
            self._on_ready()
        elif event.op == wire.Event.lost:
            waiting = self._lost.pop((event.cell, event.life), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(event.oom > 0)
        elif event.op == wire.Event.frozen:
            freezing = self._freezing.get((event.cell, event.life))
            if freezing is not None and not freezing.done():
                freezing.set_result(event.error)
        elif event.op == wire.Event.counts:
            for answer in self._counts:
                if not answer.done():
                    answer.set_result(event)
            self._counts.clear()
        else:
            self._note_failure(event)

    def _lose_unseen(self, event: wire.HostEvent) -> None:
        """Its socket could not be received. A moment later the next one is tried in its place."""
        again = wire.kill_request(event.cell, event.life, retire=False)
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._link.ask, again)
        if not self._closing:
            cure = "close some, or raise the limit (ulimit -n)"
            self._fail(SandboxUnavailable(f"a box cannot be taken: no descriptor is left here: {cure}"))

    def _fail(self, error: Exception) -> None:
        self._renewals.refuse(error)
        self._on_fault(error)

    def _note_failure(self, event: wire.HostEvent) -> None:
        self._failures += 1
        if self._failures >= _MAX_FAILURES or event.op == wire.Event.refused:
            self._fail(SandboxUnavailable(_describe(event)))

    async def _died_of_memory(self, box: NativeBox) -> bool:
        """Whether the memory limit killed a box that died; tilt-host tells soon after."""
        waiting = self._lost[box.cell, box.life] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(waiting, _LOST_SECONDS)
        except TimeoutError:
            return False
        finally:
            self._lost.pop((box.cell, box.life), None)

    def _ended(self, reason: str) -> None:
        """tilt-host died and every box with it."""
        for box in self._ready:
            box.close()
        self._ready.clear()
        for answer in (*self._counts, *self._freezing.values()):
            answer.cancel()
        self._counts.clear()
        if self._closing:
            return
        if not self._made:
            self._fail(
                SandboxUnavailable(f"no sandbox can be made here: {reason}; see `tiltyard sandbox doctor`")
            )
            return
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - _MINUTE:
            self._deaths.popleft()
        if len(self._deaths) > _MAX_RESTARTS:
            self._fail(
                SandboxUnavailable(f"tilt-host died {len(self._deaths)} times within a minute: {reason}")
            )
            return
        self.restarts += 1
        self._link = HostLink(self._hear, self._ended)
        try:
            self.start()
        except SandboxUnavailable as error:
            self._fail(error)


def _describe(event: wire.HostEvent) -> str:
    if event.op == wire.Event.refused:
        return f"tilt-host refused image or limits: {os.strerror(event.error)}; see `tiltyard sandbox doctor`"
    step = wire.STEPS[event.step] if event.step < len(wire.STEPS) else f"step {event.step}"
    if event.error:
        why = os.strerror(event.error)
    elif os.WIFSIGNALED(event.status):
        why = signal.strsignal(os.WTERMSIG(event.status)) or "a signal"
    else:
        why = f"status {event.status}"
    return f"a sandbox could not be made: {step}: {why}; run `tiltyard sandbox doctor` to see why"
