"""How attempts end in the database: many at a time, each under its fence.

Guarantees: what could not be committed is tried again until the runner is lost or stops; graders and
dispatcher are told after the commit, never before.
Does not: give up by itself."""

import asyncio
import random
from collections.abc import Sequence

from sqlalchemy.orm import Session

from tiltyard.contracts.messages import DISPATCH, GRADE
from tiltyard.core.retry import backoff
from tiltyard.queue import Publisher
from tiltyard.store import attempts, gradings
from tiltyard.store.attempts import Failed, Produced
from tiltyard.store.batch import UNAVAILABLE, Batch
from tiltyard.store.database import AsyncUnitOfWork
from tiltyard.telemetry.events import event_logger

log = event_logger("runner")
End = Produced | Failed
LINGER_SECONDS = 0.04
"""How long an end waits for others: a transaction costs more than an episode."""


class Commits:
    """Commits the ends of attempts."""

    def __init__(self, work: AsyncUnitOfWork, publisher: Publisher) -> None:
        self._work, self._publisher = work, publisher
        self._batch: Batch[End, bool] = Batch(self._flush, linger=LINGER_SECONDS)

    async def commit(self, end: End) -> bool:
        """Whether the attempt was still held."""
        failures = 0
        while True:
            try:
                return await self._batch.submit(end)
            except UNAVAILABLE as error:
                failures += 1
                log.warning("attempt.uncommitted", rollout_id=end.key.rollout_id, error=str(error))
                await asyncio.sleep(backoff(failures, jitter=random.random()).total_seconds())

    async def _flush(self, ends: Sequence[End]) -> list[bool]:
        held, waiting = await self._work.run(_write, ends)
        if waiting:
            self._publisher.enqueue(GRADE, waiting)
        if any(isinstance(end, Failed) for end in ends):
            self._publisher.announce(DISPATCH)
        return [end.key.rollout_id in held for end in ends]


def _write(session: Session, ends: Sequence[End]) -> tuple[set[str], list[str]]:
    """Rollouts that were still held, and the gradings that now wait."""
    produced = [end for end in ends if isinstance(end, Produced)]
    held = attempts.produce(session, produced) if produced else set[str]()
    waiting = gradings.announced(session, sorted(held)) if held else []
    for end in ends:
        if isinstance(end, Failed) and attempts.fail(session, end) is not None:
            held.add(end.key.rollout_id)
    return held, waiting
