"""Hints and jobs over RabbitMQ, through kombu.

Guarantees: a job is confirmed by a queue or fails (`mandatory` and confirms); a listener's queue is exclusive
and goes with its connection.
Does not: keep hints for a listener that is away; on its return it looks at its rows anyway."""

import contextlib
from collections.abc import Iterable, Sequence
from uuid import uuid4

from amqp.exceptions import AMQPError, MessageNacked
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.exceptions import KombuError, OperationalError
from kombu.message import Message
from kombu.messaging import Consumer, Producer

from tiltyard.contracts.messages import JobBatch
from tiltyard.queue.jobs import celery_app, send_job
from tiltyard.queue.publisher import Rejected
from tiltyard.queue.topology import (
    CONFIRM_SECONDS,
    HINTS,
    JOBS,
    channel_of,
    consuming_connection,
    dead_queue,
    job_queues,
    publishing_connection,
)

MOST_HINTS = 1_000
"""Hints in one listener's queue; the oldest give way, since a hint is as good as the next."""


class RabbitSender:
    """A `Sender` on a connection of its own."""

    def __init__(self, broker_url: str) -> None:
        self._url = broker_url
        self._app = celery_app(broker_url)
        self._connection: Connection | None = None
        self._producer: Producer | None = None

    def connect(self) -> None:
        self._connection = publishing_connection(self._url)
        channel = channel_of(self._connection)
        for declared in (HINTS, JOBS, dead_queue(), *job_queues()):
            declared(channel).declare()
        self._producer = self._app.amqp.Producer(channel, auto_declare=False)

    def send_hints(self, topics: Sequence[str]) -> None:
        for topic in topics:
            self._ready().publish(
                b"",
                exchange=HINTS.name,
                routing_key=topic,
                content_type="application/octet-stream",
                content_encoding="binary",
                delivery_mode=1,
                retry=False,
                timeout=CONFIRM_SECONDS,
                confirm_timeout=CONFIRM_SECONDS,
            )

    def send_job(self, batch: JobBatch) -> None:
        try:
            send_job(self._app, self._ready(), batch)
        except (MessageNacked, OperationalError) as error:
            if isinstance(error, MessageNacked) or isinstance(error.__cause__, MessageNacked):
                raise Rejected(f"the queue of {batch.kind} jobs is full") from error
            raise

    def close(self) -> None:
        _closed(self._connection)
        self._connection = self._producer = None

    def _ready(self) -> Producer:
        if self._producer is None:
            raise ConnectionError("not connected")
        return self._producer


class RabbitTap:
    """A `Tap` on an exclusive queue with a fresh name, which dies with its connection."""

    def __init__(self, broker_url: str, topics: Iterable[str]) -> None:
        self._url = broker_url
        self._topics = frozenset(topics)
        self._connection: Connection | None = None
        self._heard: set[str] = set()

    def connect(self) -> None:
        self._connection = consuming_connection(self._url)
        channel = channel_of(self._connection)
        HINTS(channel).declare()
        queue = self._queue()(channel)
        queue.declare()
        for topic in self._topics:
            queue.bind_to(exchange=HINTS.name, routing_key=topic)
        Consumer(channel, [queue], no_ack=True, auto_declare=False, on_message=self._hear).consume()

    def drain(self, seconds: float) -> set[str]:
        if self._connection is None:
            raise ConnectionError("not connected")
        with contextlib.suppress(TimeoutError):
            self._connection.drain_events(timeout=seconds)
            for _ in range(MOST_HINTS):  # whatever has come already belongs to the same waking
                self._connection.drain_events(timeout=0.001)
        self._connection.heartbeat_check()
        heard, self._heard = self._heard, set()
        return heard

    def close(self) -> None:
        _closed(self._connection)
        self._connection = None

    def _queue(self) -> Queue:
        return Queue(
            f"tiltyard.ear.{uuid4().hex}",
            exclusive=True,
            auto_delete=True,
            durable=False,
            queue_arguments={"x-max-length": MOST_HINTS, "x-overflow": "drop-head"},
        )

    def _hear(self, message: Message) -> None:
        info = message.delivery_info or {}
        self._heard.add(info["routing_key"])


def _closed(connection: Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(AMQPError, KombuError, OSError):
            connection.collect()
