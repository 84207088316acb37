"""One incarnation of a runner: join the fleet, claim grants, host episodes, leave.

Guarantees: what is aboard dies with its incarnation; what is to be stopped is stopped, and the dispatcher
hears of it; on the way out what cannot end in time goes back to the queue.
Does not: count slots: a grant is only given into a free one (`core.placement`)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from typing import Any

import aiohttp

from services.runner.attempt import Attempts, Recorder
from services.runner.commits import Commits
from services.runner.heartbeat import Heartbeat
from services.runner.metrics import Metrics
from services.runner.policy import Policy
from services.runner.settings import RunnerSettings
from tiltyard.contracts.http import NodeHealth
from tiltyard.contracts.messages import DISPATCH, runner_topic
from tiltyard.objects import ObjectStore
from tiltyard.objects.crew import Crew
from tiltyard.queue import Ear, Publisher, open_listener
from tiltyard.store import attempts, fleet
from tiltyard.store.attempts import Claim
from tiltyard.store.batch import UNAVAILABLE
from tiltyard.store.database import AsyncUnitOfWork, new_id
from tiltyard.store.fleet import Orders
from tiltyard.store.moves import Key
from tiltyard.telemetry.events import event_logger

log = event_logger("runner")
BATCH = 32
"""Rows of one claim."""
CLAIMS_AT_ONCE = 3
"""Claims side by side, since a claim mostly waits for the database; a connection is left for commits."""
POLL_SECONDS = 5.0
RETRY_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""How long episodes may go on after the runner was told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every incarnation of this process shares."""

    settings: RunnerSettings
    work: AsyncUnitOfWork
    pulse: AsyncUnitOfWork
    """A connection for heartbeats alone."""
    objects: ObjectStore
    publisher: Publisher
    recorder: Recorder
    metrics: Metrics
    session: aiohttp.ClientSession
    uploads: Crew
    health: Callable[[], NodeHealth | None]
    """Of its sandboxes; None: it has none."""


class Incarnation:
    """A named life of the runner."""

    def __init__(self, parts: Parts) -> None:
        self.id = new_id()
        self._parts = parts
        self._heartbeat = Heartbeat(parts.pulse, self.id, self._obey, health=parts.health)
        self._aboard: dict[Key, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._stopping: set[Key] = set()
        self._attempts = Attempts(
            incarnation=self.id,
            policy=Policy(parts.session, parts.settings.rollout_url, self._heartbeat.may_act),
            objects=parts.objects,
            commits=Commits(parts.work, parts.publisher),
            recorder=parts.recorder,
            metrics=parts.metrics,
            may_act=self._heartbeat.may_act,
            uploads=parts.uploads,
        )

    async def live(self, stop: asyncio.Event) -> None:
        """Join, and host until `stop` is set or the incarnation is given up."""
        settings = self._parts.settings
        await self._parts.work.run(
            fleet.join,
            self.id,
            node=settings.node,
            slots=settings.slots,
            version=version("tiltyard"),
            pool=settings.pool,
            cpu=settings.cpu,
            memory_mb=settings.memory_mb,
            gpu=settings.gpu,
        )
        log.info("runner.joined", incarnation=self.id, node=settings.node, slots=settings.slots)
        topics = [runner_topic(self.id)]
        async with open_listener(settings.broker_url, settings.database_url, topics) as ear:
            await self._until_over(ear, stop)

    async def _until_over(self, ear: Ear, stop: asyncio.Event) -> None:
        beating = asyncio.create_task(self._heartbeat.beat_until_lost())
        hosting = asyncio.create_task(self._host(ear))
        told = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({beating, hosting, told}, return_when=asyncio.FIRST_COMPLETED)
            hosting.cancel()
            if not self._heartbeat.lost.is_set() and self._aboard:
                await asyncio.wait(self._aboard.values(), timeout=GRACE_SECONDS)
        finally:
            await _end([hosting, told, *self._aboard.values(), *self._errands])
            if not self._heartbeat.lost.is_set():
                await self._parts.work.run(fleet.leave, self.id)
                self._parts.publisher.announce(DISPATCH)
            await _end([beating])

    async def _host(self, ear: Ear) -> None:
        """Claim while there is something to claim, several batches at once while every one is full."""
        at_once = 1
        while True:
            batches = await asyncio.gather(*(self._claim() for _ in range(at_once)))
            for claim in chain.from_iterable(batches):
                self._start(claim)
            at_once = min(CLAIMS_AT_ONCE, at_once + 1)
            if any(len(batch) < BATCH for batch in batches):
                at_once = 1
                await ear.wait(POLL_SECONDS)

    async def _claim(self) -> Sequence[Claim]:
        await self._heartbeat.may_act.wait()
        try:
            return await self._parts.work.run(attempts.claim, self.id, BATCH)
        except UNAVAILABLE as error:
            log.warning("runner.claim_failed", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            return []

    def _start(self, claim: Claim) -> None:
        task = asyncio.create_task(self._attempts.run(claim), name=f"attempt {claim.rollout_id}")
        self._aboard[claim.key] = task
        self._parts.metrics.aboard(len(self._aboard))
        task.add_done_callback(lambda _: self._gone(claim.key))

    def _gone(self, key: Key) -> None:
        self._aboard.pop(key, None)
        self._parts.metrics.aboard(len(self._aboard))

    def _obey(self, orders: Orders) -> None:
        """Stop what is to be stopped, and what is to yield unless it is being handed in: that frees the place
        as well, and loses nothing."""
        for key in orders.taken:
            if key in self._aboard:
                self._aboard[key].cancel()
        yields = [k for k in orders.yields if k not in self._attempts.handing_in]
        keys = [k for k in (*orders.stop, *yields) if k not in self._stopping]
        if keys:
            self._stopping.update(keys)
            errand = asyncio.create_task(self._stop(keys))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def _stop(self, keys: Sequence[Key]) -> None:
        """Stop these rollouts, then say so."""
        try:
            await _end([self._aboard[key] for key in keys if key in self._aboard])
            await self._parts.work.run(attempts.stopped, keys)
        except UNAVAILABLE as error:
            log.warning("runner.stop_unsaid", error=str(error))  # the next heartbeat brings the order again
            return
        finally:
            self._stopping.difference_update(keys)
        self._parts.publisher.announce(DISPATCH)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
