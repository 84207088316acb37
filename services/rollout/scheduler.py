"""Many requests, few forward passes: sequences join and leave running batches between steps.

Guarantees: first come, first admitted, whatever the policy version, so nothing starves; all computing happens
in one thread, and the event loop only waits; a failure hits the batch it happened in and no other.
Does not: compute; a `Batch` does."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Protocol

from services.rollout.engine import (
    Answer,
    Ask,
    Choose,
    EngineClosed,
    EngineFailed,
    Meter,
    Overloaded,
    Policy,
    Refused,
)
from services.rollout.sequence import Sequence

log = logging.getLogger("tiltyard.rollout")

COLLECT_SECONDS = 0.003
"""A sequence waits this long for others to begin with."""
QUEUED_PER_ROW = 64
"""Sequences that may wait, for each that may run."""


class Batch(Protocol):
    """Sequences that one policy generates together."""

    rows: list[Sequence]
    """Those that have not ended."""

    def admit(self, sequences: list[Sequence]) -> list[Sequence]:
        """Take sequences aboard and draw the first token of each; those that end with it are returned."""
        ...

    def step(self) -> list[Sequence]:
        """Draw the next token of each row; those that end, or were cancelled, leave and are returned."""
        ...


class Scheduler:
    """An engine over batches. Every method but `generate` and `close` runs in its thread."""

    def __init__(
        self, open_batch: Callable[[Policy], Batch], *, max_batch: int, meter: Meter | None = None
    ) -> None:
        self._open, self._max, self._meter = open_batch, max_batch, meter
        self._waiting: deque[Sequence] = deque()
        self._wake = threading.Condition()
        self._batches: dict[int, Batch] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tiltyard-generate", daemon=True)
        self._thread.start()

    async def generate(self, choose: Choose, ask: Ask) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def resolve(result: Answer | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, result)

        sequence = Sequence(ask, choose, resolve)
        self._enqueue(sequence)
        try:
            return await future
        finally:
            sequence.cancelled = True

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _enqueue(self, sequence: Sequence) -> None:
        with self._wake:
            if self._closed:
                raise EngineClosed("the rollout service is shutting down")
            if len(self._waiting) >= self._max * QUEUED_PER_ROW:
                raise Overloaded(f"{len(self._waiting)} sequences wait already; try again later")
            self._waiting.append(sequence)
            self._wake.notify()

    def _run(self) -> None:
        while self._await_work():
            self._admit()
            for key, batch in list(self._batches.items()):
                self._step(key, batch)
        self._resolve_all(EngineClosed("the rollout service is shutting down"))

    def _await_work(self) -> bool:
        """Wait until there is something to do; False once closed."""
        with self._wake:
            while not (self._closed or self._batches or self._waiting):
                self._wake.wait()
            if self._closed:
                return False
            if not self._batches:
                self._wake.wait_for(self._due, COLLECT_SECONDS)
        return not self._closed

    def _due(self) -> bool:
        """Whether those who wait should begin now: enough of them, or one for long enough."""
        if not self._waiting:
            return False
        enough = len(self._waiting) >= self._free()
        return self._closed or enough or time.monotonic() - self._waiting[0].asked >= COLLECT_SECONDS

    def _free(self) -> int:
        return self._max - sum(len(batch.rows) for batch in self._batches.values())

    def _admit(self) -> None:
        free = self._free()
        if free <= 0 or not self._due():
            return
        with self._wake:
            taken = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        begun = [s for s in taken if not s.cancelled and self._begin(s)]
        begun.sort(key=lambda s: id(s.policy))
        for key, group in groupby(begun, key=lambda s: id(s.policy)):
            self._board(key, list(group))

    def _begin(self, sequence: Sequence) -> bool:
        try:
            sequence.begin(sequence.choose())
        except Exception as error:  # noqa: BLE001  (it concerns this one sequence, whoever asked is told)
            sequence.resolve(error if isinstance(error, Refused | LookupError) else _broken(error))
            return False
        if self._meter:
            self._meter.admitted(sequence.admitted - sequence.asked)
        return True

    def _board(self, key: int, sequences: list[Sequence]) -> None:
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = self._open(sequences[0].policy)
        try:
            _answer(batch.admit(sequences))
        except Exception as error:  # noqa: BLE001  (recorded: every sequence of the batch fails with a kind)
            self._fail(key, sequences, error)
            return
        if not batch.rows:
            del self._batches[key]

    def _step(self, key: int, batch: Batch) -> None:
        if self._meter:
            self._meter.stepped(len(batch.rows))
        try:
            _answer(batch.step())
        except Exception as error:  # noqa: BLE001  (recorded: every sequence of the batch fails with a kind)
            self._fail(key, [], error)
            return
        if not batch.rows:
            del self._batches[key]

    def _fail(self, key: int, more: Iterable[Sequence], error: Exception) -> None:
        failure = _broken(error)
        rows = self._batches.pop(key).rows
        for sequence in {id(s): s for s in [*rows, *more]}.values():
            sequence.resolve(failure)

    def _resolve_all(self, error: BaseException) -> None:
        rows = [s for batch in self._batches.values() for s in batch.rows]
        for sequence in [*rows, *self._waiting]:
            sequence.resolve(error)


def _answer(ended: Iterable[Sequence]) -> None:
    for sequence in ended:
        if not sequence.cancelled:
            sequence.resolve(sequence.answer())


def _broken(error: Exception) -> EngineFailed:
    log.error("rollout.engine_failed", exc_info=error)
    return EngineFailed("generation failed; the rollout service's log has the reason")


def _settle(future: "asyncio.Future[Answer]", result: Answer | BaseException) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
