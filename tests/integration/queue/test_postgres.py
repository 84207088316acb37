"""Hints by LISTEN and NOTIFY on a real Postgres: the laws of every transport, and this one's own."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager

import pytest

from tiltyard.queue import Ear, Publisher, open_listener, open_publisher
from tiltyard.queue.postgres import LONGEST_CHANNEL, channel
from tiltyard.testing.servers import Postgres
from tiltyard.testing.servers.daemon import free_ports
from tiltyard.testing.transport import WITHIN, Transport, TransportLaws, first_look


class PostgresTransport:
    def __init__(self, server: Postgres, url: str) -> None:
        self._server, self._url = server, url

    def publisher(self) -> Publisher:
        return open_publisher("", self._url)

    def listener(self, topics: Iterable[str]) -> AbstractAsyncContextManager[Ear]:
        return open_listener("", self._url, topics)

    def drop_connections(self) -> None:
        assert self._server.drop_connections() > 0

    def empty(self) -> None:
        """Postgres holds no messages."""

    def dead(self) -> Publisher:
        (port,) = free_ports(1)
        return open_publisher("", f"postgresql://postgres@127.0.0.1:{port}/postgres")


@pytest.fixture
def transport(postgres: Postgres, empty_database_url: str) -> Transport:
    return PostgresTransport(postgres, empty_database_url)


class TestPostgresTransport(TransportLaws):
    """`transport` is the fixture above."""


def test_a_job_wakes_whoever_listens_to_its_kind(transport: Transport) -> None:
    async def law() -> None:
        async with transport.listener(["grade", "admit"]) as ear:
            await first_look(ear)
            with transport.publisher() as publisher:
                publisher.enqueue("grade", (str(number) for number in range(1_000)))
                assert await asyncio.to_thread(publisher.flush, WITHIN)
            assert await ear.wait(WITHIN) == {"grade"}

    asyncio.run(law())


def test_a_sqlalchemy_url_is_understood(postgres: Postgres, empty_database_url: str) -> None:
    url = empty_database_url.replace("postgresql://", "postgresql+psycopg://")
    with open_publisher("", url) as publisher:
        publisher.announce("dispatch")
        assert publisher.flush(WITHIN)


def test_long_topics_keep_channels_of_their_own() -> None:
    topics = ["x" * length for length in range(1, 240)]
    channels = {channel(topic) for topic in topics}
    assert len(channels) == len(topics)
    assert all(len(name.encode()) <= LONGEST_CHANNEL for name in channels)


def test_what_was_announced_during_an_outage_is_sent_after_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = Postgres(tmp_path_factory.mktemp("outage"))
    try:
        server.start()
        with open_publisher("", server.url) as publisher:
            publisher.announce("first")
            assert publisher.flush(WITHIN)
            server.kill()
            publisher.announce("policy")
            assert not publisher.flush(0.2)
            server.start()
            assert publisher.flush(WITHIN)
            assert publisher.stats().sent == 2
            assert publisher.stats().connects == 2
    finally:
        server.kill()
