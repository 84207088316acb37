"""A native box at rest: its payload stops where it is, and goes on from there.

Guarantees: while it rests no clock of its commands runs, and whatever is asked of it is refused with the
cure; one that cannot be stopped goes on as it was.
Does not: stop anything itself. Whoever holds the box's cgroup does (`Keeper.freeze`)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tiltyard.sandbox.errors import CapabilityRefused, SandboxBusy, SandboxGone

from . import wire
from .link import InitLink

_TRIES = 200
_REST_SECONDS = 0.01

Freeze = Callable[[bool], Awaitable[None]]


class _Resting(Protocol):
    """What of a box this needs."""

    @property
    def id(self) -> str: ...
    @property
    def paused(self) -> bool: ...
    def _links(self) -> Sequence[InitLink]:
        """Of its PID 1, and then of each background command."""
        ...

    def _freezer(self) -> Freeze | None: ...


class BoxRest:
    """See `tiltyard.sandbox.Box`; a box inherits it."""

    async def pause(self: _Resting) -> None:
        if self.paused:
            return
        links, freeze = self._links(), self._freezer()
        if freeze is None:
            raise CapabilityRefused(f"box {self.id} cannot be paused by its backend: leave it running")
        if links[0].busy:
            raise SandboxBusy(
                f"box {self.id} runs a command: await its end, or `start` in the background what is to be "
                "paused"
            )
        for link in links:
            link.paused = True
        try:
            await _hold(links[0])
            await asyncio.gather(*(_hold_command(link) for link in links[1:]))
            await freeze(True)
        except BaseException:
            await asyncio.shield(_go_on(links))
            raise

    async def resume(self: _Resting) -> None:
        if not self.paused:
            return
        freeze = self._freezer()
        assert freeze is not None, "it was paused by it"
        await freeze(False)
        await _go_on(self._links())


async def _hold_command(link: InitLink) -> None:
    """One that has ended meanwhile has no clocks."""
    with suppress(SandboxGone):
        await _hold(link)


async def _hold(link: InitLink) -> None:
    """Stops the clocks of a link's command, once it has begun. Raises SandboxGone, SandboxBusy."""
    for _ in range(_TRIES):
        error, _, _ = wire.done(await link.ask(_frame(wire.Ask.hold), at_rest=True))
        if not error:
            return
        await asyncio.sleep(_REST_SECONDS)
    raise SandboxBusy(f"{link.name} is still being started: pause it later")


async def _go_on(links: Sequence[InitLink]) -> None:
    for link in links:
        link.paused = False
    alive = [link for link in links if not link.gone]
    await asyncio.gather(*(link.ask(_frame(wire.Ask.go_on)) for link in alive), return_exceptions=True)


def _frame(kind: wire.Ask) -> Callable[[int], bytes]:
    return lambda ident: wire.bare_frame(ident, kind)
