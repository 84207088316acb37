"""Listening for hints in asyncio.

Guarantees: `wait` returns when any topic fired since the last wait; every (re)connection and every loss of
one fires all topics, so a hint that fell between is never missed for good.
Does not: say how often a topic fired, or why; look at your rows."""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from tiltyard.core.retry import backoff

log = logging.getLogger("tiltyard.queue")

LONGEST_WAIT_SECONDS = 5.0
"""Between two tries to connect."""
DRAIN_SECONDS = 0.25
"""How long the thread listens before it looks whether it should end."""


class Tap(Protocol):
    """One connection that listens. Used by one thread; any exception means: connect anew."""

    def connect(self) -> None:
        """Connect and subscribe; what is announced after it returns is heard."""
        ...

    def drain(self, seconds: float) -> set[str]:
        """Topics that fire within this time; returns early when there are any."""
        ...

    def close(self) -> None:
        """Let go of the connection, whatever state it is in."""
        ...


class Ear:
    """Topics that fired, coalesced."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics)
        self._fired: set[str] = set()
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait(self, timeout: float) -> set[str]:
        """Topics that fired since the last wait, at once if there are any; empty after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout)
        self._event.clear()
        fired, self._fired = self._fired, set()
        return fired

    def fire(self, topics: Iterable[str]) -> None:
        """Wake the waiter; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self._hear, frozenset(topics))

    def _hear(self, topics: frozenset[str]) -> None:
        self._fired |= topics & self.topics
        self._event.set()


@asynccontextmanager
async def listening(tap: Tap, topics: Iterable[str]) -> AsyncIterator[Ear]:
    """An ear that a thread feeds from the tap, as long as the context lasts."""
    ear, ended = Ear(topics), threading.Event()
    thread = threading.Thread(target=_listen, args=(tap, ear, ended), name="tiltyard-listener", daemon=True)
    thread.start()
    try:
        yield ear
    finally:
        ended.set()
        await asyncio.shield(asyncio.to_thread(thread.join, 2.0))


def _listen(tap: Tap, ear: Ear, ended: threading.Event) -> None:
    failures = 0
    while not ended.is_set():
        try:
            tap.connect()
            failures = 0
            ear.fire(ear.topics)
            while not ended.is_set():
                if fired := tap.drain(DRAIN_SECONDS):
                    ear.fire(fired)
        except Exception as error:  # noqa: BLE001  (whatever a transport raises: look at the rows)
            failures += 1
            _lost(ear, error, failures, ended)
        finally:
            tap.close()


def _lost(ear: Ear, error: Exception, failures: int, ended: threading.Event) -> None:
    wait = min(backoff(failures, jitter=random.random()).total_seconds(), LONGEST_WAIT_SECONDS)
    fields = {"error": f"{type(error).__name__}: {error}", "failures": failures, "retry_in_s": round(wait, 2)}
    log.warning("queue.listener_lost", extra={"fields": fields})
    if failures == 1:
        ear.fire(ear.topics)
    ended.wait(wait)
