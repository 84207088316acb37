"""Publishing from synchronous or asynchronous code, without ever waiting for a broker.

Guarantees: `announce` and `enqueue` return at once and raise nothing for a broken broker; what could not be
sent is sent after the next connection, in memory bounds; what is dropped is counted.
Does not: promise delivery. Rows are the outbox."""

import logging
import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from tiltyard.contracts.messages import ADMIT, GRADE, JobBatch
from tiltyard.core.retry import backoff
from tiltyard.queue.outgoing import Outgoing

log = logging.getLogger("tiltyard.queue")

KINDS = (GRADE, ADMIT)
IDS_IN_A_JOB = 256
LONGEST_WAIT_SECONDS = 5.0
"""Between two tries to connect."""
LONGEST_TOPIC = 240
"""Bytes; AMQP allows 255."""


class Rejected(Exception):
    """The broker answered and refuses this message, as when a queue is full; another try is pointless."""


class Sender(Protocol):
    """One connection that publishes. Used by one thread; any exception but `Rejected` means: connect anew."""

    def connect(self) -> None:
        """Connect, and declare what messages need to arrive."""
        ...

    def send_hints(self, topics: Sequence[str]) -> None:
        """Wake whoever listens to these topics, now."""
        ...

    def send_job(self, batch: JobBatch) -> None:
        """Hand one batch to the workers of its kind; `Rejected` when the broker refuses it."""
        ...

    def close(self) -> None:
        """Let go of the connection, whatever state it is in."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStats:
    """Counters since the start, for metrics."""

    sent: int = 0
    """Messages that the broker took."""
    failed: int = 0
    """Attempts that a broken connection or a refusal ended."""
    dropped: int = 0
    """Topics and ids given up: refused, or beyond the bounds of memory."""
    connects: int = 0


class Publisher:
    """Announces topics and enqueues jobs from any thread; one daemon thread talks to the broker."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._outgoing = Outgoing()
        self._changed = threading.Condition()
        self._sending = False
        self._closing = False
        self._stats = PublisherStats()
        self._thread = threading.Thread(target=self._run, name="tiltyard-publisher", daemon=True)
        self._thread.start()

    def announce(self, *topics: str) -> None:
        """Wake whoever listens to these topics; call it after the commit of the rows."""
        for topic in topics:
            if not 0 < len(topic.encode()) <= LONGEST_TOPIC:
                raise ValueError(f"topic {topic[:40]!r}… must have 1 to {LONGEST_TOPIC} bytes")
        with self._changed:
            self._count(dropped=self._outgoing.announce(topics))
            self._changed.notify_all()

    def enqueue(self, kind: str, ids: Iterable[str]) -> None:
        """Offer rows of one kind of job to its workers; none at all means: look whether any wait."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of job; kinds are {', '.join(KINDS)}")
        wanted = [str(one) for one in ids]
        with self._changed:
            self._count(dropped=self._outgoing.enqueue(kind, wanted))
            self._changed.notify_all()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until nothing waits to be sent; False when `timeout` seconds did not suffice."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._outgoing and not self._sending, timeout)

    def stats(self) -> PublisherStats:
        """The counters as they stand."""
        return self._stats

    def close(self, timeout: float = 2.0) -> None:
        """Send what waits, as far as `timeout` seconds allow, and end the thread."""
        self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        failures = 0
        connected = False
        while (batch := self._next()) is not None:
            try:
                if not connected:
                    self._sender.connect()
                    self._count(connects=1)
                connected = True
                self._send(batch)
                failures = 0
            except Exception as error:  # noqa: BLE001  (whatever a transport raises: the rows wait)
                failures += 1
                connected = False
                self._failed(batch, error, failures)
            self._settle()
        self._sender.close()

    def _next(self) -> Outgoing | None:
        """Everything that waits, as soon as anything does; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._outgoing or self._closing)
            if self._closing:
                return None
            batch, self._outgoing = self._outgoing, Outgoing()
            self._sending = True
            return batch

    def _send(self, batch: Outgoing) -> None:
        """Send, and take out of the batch what was sent."""
        if batch.topics:
            self._sender.send_hints(list(batch.topics))
            self._count(sent=len(batch.topics))
            batch.topics = {}
        for kind in list(batch.jobs):
            for job in _jobs(kind, list(batch.jobs[kind])):
                self._send_job(job)
                for sent in job.ids:
                    del batch.jobs[kind][sent]
            del batch.jobs[kind]

    def _send_job(self, job: JobBatch) -> None:
        try:
            self._sender.send_job(job)
            self._count(sent=1)
        except Rejected as error:
            self._count(failed=1, dropped=len(job.ids))
            log.warning("queue.rejected", extra={"fields": {"kind": job.kind, "error": str(error)}})

    def _failed(self, batch: Outgoing, error: Exception, failures: int) -> None:
        self._sender.close()
        wait = min(backoff(failures, jitter=random.random()).total_seconds(), LONGEST_WAIT_SECONDS)
        reason = f"{type(error).__name__}: {error}"
        fields = {"error": reason, "failures": failures, "retry_in_s": round(wait, 2)}
        log.warning("queue.publish_failed", extra={"fields": fields})
        with self._changed:
            self._count(failed=1, dropped=self._outgoing.take_back(batch))
            self._changed.wait_for(lambda: self._closing, wait)

    def _settle(self) -> None:
        with self._changed:
            self._sending = False
            self._changed.notify_all()

    def _count(self, **more: int) -> None:
        self._stats = replace(
            self._stats, **{name: getattr(self._stats, name) + number for name, number in more.items()}
        )


def _jobs(kind: str, ids: list[str]) -> list[JobBatch]:
    """Batches of at most `IDS_IN_A_JOB`; one empty batch for no ids."""
    starts = range(0, max(len(ids), 1), IDS_IN_A_JOB)
    documents = ({"kind": kind, "ids": ids[start : start + IDS_IN_A_JOB]} for start in starts)
    return [JobBatch.model_validate(document) for document in documents]
