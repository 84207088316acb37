"""Hints and jobs on a real RabbitMQ: the laws of every transport, and this one's own."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from kombu.connection import Connection

from tiltyard.queue import Ear, Publisher, open_listener, open_publisher
from tiltyard.queue.topology import job_queue, job_queues
from tiltyard.testing.servers import RabbitMQ
from tiltyard.testing.servers.daemon import free_ports, wait_until
from tiltyard.testing.transport import WITHIN, Transport, TransportLaws, first_look

pytestmark = pytest.mark.rabbitmq
NO_DATABASE = "postgresql://nobody@127.0.0.1:1/nowhere"


class RabbitTransport:
    def __init__(self, server: RabbitMQ, url: str) -> None:
        self._server, self._url = server, url

    def publisher(self) -> Publisher:
        return open_publisher(self._url, NO_DATABASE)

    def listener(self, topics: Iterable[str]) -> AbstractAsyncContextManager[Ear]:
        return open_listener(self._url, NO_DATABASE, topics)

    def drop_connections(self) -> None:
        wait_until(lambda: self._server.drop_connections() > 0, "connections to drop", within=30)

    def empty(self) -> None:
        with Connection(self._url) as connection:
            channel: Any = connection.channel()
            for queue in job_queues():
                assert queue(channel).purge() >= 0

    def dead(self) -> Publisher:
        (port,) = free_ports(1)
        return open_publisher(f"amqp://guest:guest@127.0.0.1:{port}//", NO_DATABASE)


@pytest.fixture
def transport(rabbitmq: RabbitMQ, rabbitmq_url: str) -> Transport:
    return RabbitTransport(rabbitmq, rabbitmq_url)


class TestRabbitTransport(TransportLaws):
    """`transport` is the fixture above."""


def waiting(url: str, kind: str) -> int:
    """Jobs of a kind in the broker."""
    with Connection(url) as connection:
        channel: Any = connection.channel()
        return job_queue(kind)(channel).queue_declare(passive=True).message_count


def test_jobs_travel_in_batches(rabbitmq_url: str) -> None:
    with open_publisher(rabbitmq_url, NO_DATABASE) as publisher:
        publisher.flush(0)
        publisher.enqueue("grade", (str(number) for number in range(600)))
        publisher.enqueue("admit", [])
        assert publisher.flush(WITHIN)
    assert waiting(rabbitmq_url, "grade") == 3
    assert waiting(rabbitmq_url, "admit") == 1


def test_jobs_wait_for_a_worker_through_a_restart_of_the_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = RabbitMQ(tmp_path_factory.mktemp("restart"))
    try:
        server.start()
        with open_publisher(server.url, NO_DATABASE) as publisher:
            publisher.enqueue("grade", ["1"])
            assert publisher.flush(WITHIN)
            server.kill()
            publisher.enqueue("grade", ["2"])
            assert not publisher.flush(0.2)
            server.start()
            assert publisher.flush(60)
        assert waiting(server.url, "grade") == 2
    finally:
        server.kill()


def test_a_deleted_queue_is_made_anew_and_the_job_sent_again(rabbitmq_url: str) -> None:
    with open_publisher(rabbitmq_url, NO_DATABASE) as publisher:
        publisher.enqueue("grade", ["1"])
        assert publisher.flush(WITHIN)
        with Connection(rabbitmq_url) as connection:
            channel: Any = connection.channel()
            job_queue("grade")(channel).delete()
        publisher.enqueue("grade", ["2"])
        assert publisher.flush(WITHIN)
        assert publisher.stats().failed == 1
    assert waiting(rabbitmq_url, "grade") == 1


def test_a_full_queue_costs_the_job_and_not_the_hints(
    rabbitmq: RabbitMQ, rabbitmq_url: str, transport: Transport
) -> None:
    policy = {"pattern": "tiltyard.jobs.*", "definition": {"max-length": 1}, "apply-to": "queues"}
    rabbitmq.api("PUT", f"/policies/{rabbitmq_url.rpartition('/')[2]}/short", policy)

    async def law() -> None:
        async with transport.listener(["policy"]) as ear:
            await first_look(ear)
            with transport.publisher() as publisher:
                publisher.flush(0)
                deadline = time.monotonic() + WITHIN
                while not publisher.stats().dropped and time.monotonic() < deadline:
                    publisher.enqueue("grade", ["1"])
                    await asyncio.to_thread(publisher.flush, WITHIN)
                assert publisher.stats().dropped >= 1
                publisher.announce("policy")
                assert await asyncio.to_thread(publisher.flush, WITHIN)
                assert publisher.stats().connects == 1
            assert await ear.wait(WITHIN) == {"policy"}

    asyncio.run(law())


def test_a_memory_alarm_holds_the_message_and_not_the_caller(rabbitmq: RabbitMQ, rabbitmq_url: str) -> None:
    with open_publisher(rabbitmq_url, NO_DATABASE) as publisher:
        publisher.announce("warm")
        assert publisher.flush(WITHIN)
        rabbitmq.control("set_vm_memory_high_watermark", "0.000001")
        try:
            publisher.enqueue("grade", ["1"])
            assert not publisher.flush(1)
        finally:
            rabbitmq.control("set_vm_memory_high_watermark", "0.4")
        assert publisher.flush(60)
    assert waiting(rabbitmq_url, "grade") >= 1


def test_a_listeners_queue_goes_with_its_connection(
    rabbitmq: RabbitMQ, rabbitmq_url: str, transport: Transport
) -> None:
    def ears() -> list[str]:
        queues = rabbitmq.api("GET", f"/queues/{rabbitmq_url.rpartition('/')[2]}")
        return [queue["name"] for queue in queues if queue["name"].startswith("tiltyard.ear.")]

    async def law() -> None:
        async with transport.listener(["dispatch"]) as ear:
            await first_look(ear)
            await asyncio.to_thread(wait_until, lambda: len(ears()) == 1, "one ear", within=WITHIN)

    asyncio.run(law())
    wait_until(lambda: not ears(), "no ear", within=WITHIN)


def test_a_wrong_broker_url_is_told_what_is_right() -> None:
    with pytest.raises(ValueError, match="write amqp://"):
        open_publisher("redis://127.0.0.1", NO_DATABASE)


def test_no_log_tells_the_brokers_password(rabbitmq_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also not when the broker refuses it."""
    wrong = rabbitmq_url.replace("guest:guest", "guest:opensesame")
    with caplog.at_level(0), open_publisher(wrong, NO_DATABASE) as publisher:
        publisher.announce("anything")
        wait_until(lambda: publisher.stats().failed > 0, "a refusal", within=30)
    assert any(record.message == "queue.publish_failed" for record in caplog.records)
    for record in caplog.records:
        assert "opensesame" not in f"{record.getMessage()} {vars(record)}"
