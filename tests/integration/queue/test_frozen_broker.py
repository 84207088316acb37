"""A broker that is there and does not answer: callers go on, listeners look again, and it all comes back."""

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tiltyard.queue import open_listener, open_publisher
from tiltyard.testing.proxy import Proxy, proxied
from tiltyard.testing.transport import WITHIN, first_look

NOTICED = 60.0
"""Seconds in which a silent peer is given up; a bound for a hung test."""


@pytest.fixture(params=["postgres", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def frozen(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, str, str]]:
    """A proxy, and the broker and database URLs that lead through it."""
    if request.param == "postgres":
        url = request.getfixturevalue("empty_database_url")
        with proxied(port_of(url)) as proxy:
            yield proxy, "", url.replace(str(port_of(url)), str(proxy.port))
    else:
        url = request.getfixturevalue("rabbitmq_url")
        with proxied(port_of(url)) as proxy:
            yield proxy, url.replace(str(port_of(url)), str(proxy.port)), ""


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def test_a_publisher_goes_on_when_the_broker_thaws(frozen: tuple[Proxy, str, str]) -> None:
    proxy, broker, database = frozen
    with open_publisher(broker, database) as publisher:
        publisher.announce("dispatch")
        assert publisher.flush(WITHIN)
        proxy.freeze()
        for number in range(1_000):
            publisher.announce(f"runner.{number}")
        assert not publisher.flush(0.2)
        proxy.pass_on()
        assert publisher.flush(NOTICED)
        assert publisher.stats().dropped == 0


@pytest.mark.parametrize("act", [Proxy.freeze, Proxy.cut])
def test_a_listener_hears_again_after_the_network_failed(
    frozen: tuple[Proxy, str, str], act: Callable[[Proxy], None]
) -> None:
    proxy, broker, database = frozen

    async def law() -> None:
        async with open_listener(broker, database, ["dispatch"]) as ear:
            await first_look(ear)
            act(proxy)
            assert await ear.wait(0.5) in (set(), {"dispatch"})
            proxy.pass_on()
            with open_publisher(broker, database) as publisher:
                for _ in range(int(NOTICED)):
                    publisher.announce("dispatch")
                    if await ear.wait(1.0):
                        return
        pytest.fail("the listener stayed deaf")

    asyncio.run(law())


@pytest.mark.rabbitmq
def test_a_listener_gives_up_a_silent_broker_and_says_so(rabbitmq_url: str) -> None:
    async def law(proxy: Proxy, broker: str) -> None:
        async with open_listener(broker, "", ["dispatch"]) as ear:
            await first_look(ear)
            proxy.freeze()
            assert await ear.wait(NOTICED) == {"dispatch"}

    with proxied(port_of(rabbitmq_url)) as proxy:
        asyncio.run(law(proxy, rabbitmq_url.replace(str(port_of(rabbitmq_url)), str(proxy.port))))
