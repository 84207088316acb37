"""Sandboxes lent to callers that may vanish.

Guarantees: a sandbox nobody asks for during its lease is destroyed; one that is in use is not; an order or a
command repeated with its key is not done twice; who asks for one that ended is told why.
One that reaches a network does so through a proxy of this process, which keeps a record of each connection.
Does not: outlive the process: with the runner its sandboxes are gone."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tiltyard.contracts.network import NONE, NetworkAccess, NetworkDemand
from tiltyard.sandbox import Box, Connection, ExecResult, Network, WarmPool
from tiltyard.sandbox.capability import Demand
from tiltyard.sandbox.network import NOWHERE, Gate, Permission, connection_spans
from tiltyard.telemetry.propagation import context_from

SWEEP_SECONDS = 0.25
REMEMBERED = 10_000
"""Ended sandboxes whose end can still be told."""


class NoSuchSandbox(LookupError):
    """No sandbox of this name was lent by this process, as far as it remembers."""


class LeaseEnded(LookupError):
    """The sandbox was lent and is gone; the message says why."""


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """One lent sandbox."""

    id: str
    box: Box
    seconds: float
    until: float
    """Monotonic time at which it ends if nobody asks."""
    key: str | None
    network: NetworkDemand = NONE
    """What it may reach."""
    gate: Gate | None = None
    """Its way out, where it may reach anything."""
    connections: list[Connection] = field(default_factory=list[Connection])
    """Out of it, as they ended."""
    uses: int = 0
    """Requests under way."""
    command: tuple[str, asyncio.Task[ExecResult]] | None = field(default=None)
    """The last command that was named by a key, with its result to come."""


class Lender:
    """The leases over one pool."""

    def __init__(
        self,
        pool: WarmPool,
        *,
        permission: Permission = NOWHERE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`permission`: the hosts that borrowers may ask for."""
        self.pool = pool
        self._permission = permission
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._orders: dict[str, asyncio.Task[Lease]] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()

    def leases(self) -> list[Lease]:
        return list(self._leases.values())

    def left(self, lease: Lease) -> float:
        """Seconds until it ends if nobody asks."""
        return lease.seconds if lease.uses else max(0.0, lease.until - self._clock())

    async def lend(
        self,
        seconds: float,
        *,
        wait: float,
        key: str | None = None,
        network: NetworkDemand = NONE,
        traceparent: str | None = None,
    ) -> Lease:
        """A fresh sandbox, or the one that this key ordered before. `traceparent`: the caller's own span;
        its connections are traced below it.

        Raises SandboxBusy after `wait` seconds, SandboxUnavailable, NetworkRefused, InvalidNetwork,
        CapabilityRefused."""
        if key is None:
            return await self._lend(seconds, wait, None, network, traceparent)
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = asyncio.create_task(
                self._lend(seconds, wait, key, network, traceparent)
            )
            order.add_done_callback(lambda done: self._forget_failed(key, done))
        return await asyncio.shield(order)

    async def _lend(
        self, seconds: float, wait: float, key: str | None, network: NetworkDemand, traceparent: str | None
    ) -> Lease:
        granted = self._granted(network)
        (box,) = await self.pool.borrow(1, wait)
        lease = Lease(
            id=secrets.token_urlsafe(16),
            box=box,
            seconds=seconds,
            until=self._clock() + seconds,
            key=key,
            network=network,
        )
        if granted is not None:
            await self._open_gate(lease, granted, traceparent)
        self._leases[lease.id] = lease
        return lease

    def _granted(self, network: NetworkDemand) -> Network | None:
        if not isinstance(network, NetworkAccess):
            return None
        self.pool.require(Demand.ports)
        return self._permission.grant(network)

    async def _open_gate(self, lease: Lease, network: Network, traceparent: str | None) -> None:
        """A box whose way out cannot be opened is given back."""
        spans = connection_spans(lease.connections.append, under=context_from(traceparent))
        lease.gate = Gate(lease.box, network, on_connection=spans)
        try:
            await lease.gate.open()
        except BaseException:
            self._give_back(lease)
            raise

    def _give_back(self, lease: Lease) -> None:
        if lease.gate is not None:
            lease.gate.close()
        self.pool.give_back([lease.box])

    def _forget_failed(self, key: str, order: asyncio.Task[Lease]) -> None:
        if order.cancelled() or order.exception() is not None:
            self._orders.pop(key, None)

    @contextmanager
    def using(self, name: str) -> Iterator[Lease]:
        """The sandbox for one request; its lease starts anew at the end. Raises NoSuchSandbox, LeaseEnded."""
        lease = self._find(name)
        lease.uses += 1
        try:
            yield lease
        finally:
            lease.uses -= 1
            lease.until = self._clock() + lease.seconds

    def release(self, name: str, reason: str = "its holder released it") -> None:
        """Destroy it; a second time changes nothing. Raises NoSuchSandbox."""
        if name in self._ended:
            return
        lease = self._find(name)
        del self._leases[name]
        if lease.key is not None:
            self._orders.pop(lease.key, None)
        self._ended[name] = reason
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._give_back(lease)

    def sweep(self) -> int:
        """Destroy what nobody asked for in time; how many."""
        now = self._clock()
        late = [x for x in self._leases.values() if not x.uses and x.until <= now]
        for lease in late:
            self.release(lease.id, f"nobody asked for it for {lease.seconds:g} s, the length of its lease")
        return len(late)

    async def keep_sweeping(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def _find(self, name: str) -> Lease:
        if lease := self._leases.get(name):
            return lease
        if reason := self._ended.get(name):
            raise LeaseEnded(f"sandbox {name} is gone: {reason}; order another with POST /v1/sandboxes")
        raise NoSuchSandbox(f"there is no sandbox {name[:100]!r} here; GET /v1/sandboxes lists them")
