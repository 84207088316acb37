"""Chooses the transport.

Guarantees: no broker URL means Postgres; callers are the same for both.
Does not: connect; threads do, and again after every loss."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

from tiltyard.queue.listener import Ear, Tap, listening
from tiltyard.queue.postgres import PostgresSender, PostgresTap
from tiltyard.queue.publisher import Publisher, Sender


def open_publisher(broker_url: str, database_url: str) -> Publisher:
    """A publisher to RabbitMQ at `broker_url`, or by NOTIFY where that is empty; close it at the end."""
    return Publisher(_sender(broker_url, database_url))


def open_listener(
    broker_url: str, database_url: str, topics: Iterable[str]
) -> AbstractAsyncContextManager[Ear]:
    """`async with open_listener(…) as ear`: hears hints to these topics; give `wait` a poll interval."""
    wanted = frozenset(topics)
    return listening(_tap(broker_url, database_url, wanted), wanted)


def _sender(broker_url: str, database_url: str) -> Sender:
    if not _is_amqp(broker_url):
        return PostgresSender(database_url)
    from tiltyard.queue.rabbitmq import RabbitSender  # Celery takes 0.3 s: only who has a broker pays

    return RabbitSender(broker_url)


def _tap(broker_url: str, database_url: str, topics: Iterable[str]) -> Tap:
    if not _is_amqp(broker_url):
        return PostgresTap(database_url, topics)
    from tiltyard.queue.rabbitmq import RabbitTap

    return RabbitTap(broker_url, topics)


def _is_amqp(broker_url: str) -> bool:
    if not broker_url:
        return False
    scheme = urlsplit(broker_url).scheme
    if scheme not in ("amqp", "amqps"):
        raise ValueError(
            f"broker URL has scheme {scheme!r}; write amqp://user:password@host:5672/vhost, "
            "or leave it empty to use Postgres"
        )
    return True
