"""The evaluator on Postgres hints: look at the rows when told, or every few seconds.

Guarantees: claims, gradings and commits overlap; on the way out what is under way may end, and the rest is
given back.
Does not: hold a connection while a grading runs."""

import asyncio
from typing import Any

from services.evaluator.jobs import Desk
from tiltyard.contracts.messages import ADMIT, GRADE
from tiltyard.queue import open_listener
from tiltyard.store.batch import UNAVAILABLE
from tiltyard.telemetry.events import event_logger

log = event_logger("evaluator")
POLL_SECONDS = 5.0
RETRY_SECONDS = 1.0
GRACE_SECONDS = 5.0


async def run(desks: list[Desk[Any]], database_url: str, stop: asyncio.Event) -> None:
    """Work until `stop` is set."""
    bells = {desk.kind.name: asyncio.Event() for desk in desks}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_listen(database_url, bells))]
        for desk in desks:
            tasks.append(group.create_task(_work(desk, bells[desk.kind.name])))
            tasks.append(group.create_task(desk.keep_leases()))
        await stop.wait()
        for task in tasks:
            task.cancel()
    await asyncio.gather(*(desk.leave(GRACE_SECONDS) for desk in desks))


async def _listen(database_url: str, bells: dict[str, asyncio.Event]) -> None:
    """Ring the bell of every kind that was announced."""
    async with open_listener("", database_url, [GRADE, ADMIT]) as ear:
        while True:
            for topic in await ear.wait(POLL_SECONDS) or bells:
                bells[topic].set()


async def _work(desk: Desk[Any], bell: asyncio.Event) -> None:
    """Claim while there is something to claim; else wait for the bell."""
    while True:
        await desk.room()
        bell.clear()
        try:
            started = await desk.pull()
        except UNAVAILABLE as error:
            log.warning("evaluator.claim_failed", kind=desk.kind.name, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if not started:
            await bell.wait()
