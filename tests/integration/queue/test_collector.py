"""Dead letters of a real broker become rows."""

from contextlib import closing

import psycopg
import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer

from services.evaluator.dead_letters import Collector
from tiltyard.queue.topology import DEAD, dead_queue
from tiltyard.testing.servers.daemon import wait_until
from tiltyard.testing.transport import WITHIN

pytestmark = pytest.mark.rabbitmq


def _bodies(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM dead_letters ORDER BY body")]


def _waiting(queue: Queue) -> int:
    return queue.queue_declare(passive=True).message_count


def test_dead_letters_become_rows_each_once(rabbitmq_url: str, database_url: str) -> None:
    with Connection(rabbitmq_url) as connection:
        channel = connection.channel()
        DEAD(channel).declare()
        queue = dead_queue()(channel)
        queue.declare()
        for number in range(3):
            Producer(channel).publish(f"letter {number}", exchange=DEAD.name, routing_key="grade")
        with closing(Collector(rabbitmq_url, database_url, every=0.1)):
            wait_until(lambda: len(_bodies(database_url)) >= 3, "the letters", within=WITHIN)
            wait_until(lambda: _waiting(queue) == 0, "an empty queue", within=WITHIN)
    assert _bodies(database_url) == ["letter 0", "letter 1", "letter 2"]
