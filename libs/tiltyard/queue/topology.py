"""Exchanges and queues on RabbitMQ, and the connections to them.

Guarantees: publishers, workers and the drain of dead letters declare the same things with the same arguments.
Does not: change a queue that exists with other arguments: RabbitMQ refuses that, and says so.

Source of the settings: RabbitMQ documentation, "Quorum Queues", "Dead Letter Exchanges" and "Publisher
Confirms"; celery issues #10386 and #9462."""

from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from tiltyard.queue.publisher import KINDS

HINTS = Exchange("tiltyard.hints", type="topic", durable=True)
"""Routing key = topic; each listener binds an exclusive queue of its own."""
JOBS = Exchange("tiltyard.jobs", type="topic", durable=True)
"""Routing key = kind of job."""
DEAD = Exchange("tiltyard.dead", type="topic", durable=True)
"""Where jobs go that nobody could read, or that were delivered too often."""
DELIVERY_LIMIT = 5
MOST_JOBS = 100_000
"""Messages in one queue, after which publishing is refused; their rows wait in Postgres."""
CONFIRM_SECONDS = 5
SOCKET_SECONDS = 10
HEARTBEAT_SECONDS = 10


def job_queue(kind: str) -> Queue:
    """The quorum queue of one kind of job."""
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": DEAD.name,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-max-length": MOST_JOBS,
    }
    name = f"tiltyard.jobs.{kind}"
    return Queue(name, JOBS, routing_key=kind, durable=True, queue_arguments=arguments)


def job_queues() -> list[Queue]:
    """The queues of all kinds."""
    return [job_queue(kind) for kind in KINDS]


def dead_queue() -> Queue:
    """The quorum queue that all dead letters end in."""
    arguments = {"x-queue-type": "quorum"}
    return Queue("tiltyard.dead", DEAD, routing_key="#", durable=True, queue_arguments=arguments)


def publishing_connection(broker_url: str) -> Connection:
    """A connection whose every wait is bounded and whose every publish is confirmed; not for consumers."""
    options = {
        "confirm_publish": True,
        "read_timeout": SOCKET_SECONDS,
        "write_timeout": SOCKET_SECONDS,
    }
    return Connection(broker_url, connect_timeout=CONFIRM_SECONDS, heartbeat=0, transport_options=options)


def consuming_connection(broker_url: str) -> Connection:
    """A connection that notices a dead broker by heartbeats."""
    return Connection(broker_url, connect_timeout=CONFIRM_SECONDS, heartbeat=HEARTBEAT_SECONDS)


def channel_of(connection: Connection) -> Any:
    """Connect without kombu's own waits between tries (its callers have their own), and open a channel."""
    return connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0).channel()
