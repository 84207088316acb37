"""What every transport of hints obeys, and a transport in memory that obeys it.

Guarantees: a transport whose tests subclass `TransportLaws` behaves as `tiltyard.queue` says.
Does not: test what jobs mean to Celery, or how a broker dies; a transport's own tests do."""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from tiltyard.contracts.messages import JobBatch
from tiltyard.queue.listener import Ear, listening
from tiltyard.queue.publisher import Publisher

WITHIN = 60.0
"""Seconds in which a hint must come; a bound for a hung test, not a measurement."""
SILENCE = 0.3
"""Seconds without a hint that count as silence."""


class Transport(Protocol):
    """What a transport's fixture gives."""

    def publisher(self) -> Publisher:
        """A new publisher; the test closes it."""
        ...

    def listener(self, topics: Iterable[str]) -> AbstractAsyncContextManager[Ear]:
        """A new listener."""
        ...

    def drop_connections(self) -> None:
        """Close every connection from the broker's side."""
        ...

    def empty(self) -> None:
        """Throw away whatever the broker holds."""
        ...

    def dead(self) -> Publisher:
        """A publisher to a broker that is not there."""
        ...


class MemoryTransport:
    """A transport between threads of one process."""

    def __init__(self) -> None:
        self._taps: set[_MemoryTap] = set()
        self._lock = threading.Lock()
        self.jobs: list[JobBatch] = []

    def publisher(self) -> Publisher:
        return Publisher(_MemorySender(self))

    def listener(self, topics: Iterable[str]) -> AbstractAsyncContextManager[Ear]:
        wanted = frozenset(topics)
        return listening(_MemoryTap(self, wanted), wanted)

    def drop_connections(self) -> None:
        with self._lock:
            for tap in self._taps:
                tap.dropped.set()
                tap.heard_any.set()

    def empty(self) -> None:
        self.jobs.clear()

    def dead(self) -> Publisher:
        return Publisher(_DeadSender())

    def deliver(self, topics: Sequence[str]) -> None:
        with self._lock:
            for tap in self._taps:
                tap.heard |= tap.topics & set(topics)
                if tap.heard:
                    tap.heard_any.set()

    def join(self, tap: "_MemoryTap") -> None:
        with self._lock:
            self._taps.add(tap)

    def leave(self, tap: "_MemoryTap") -> None:
        with self._lock:
            self._taps.discard(tap)


class _MemorySender:
    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport

    def connect(self) -> None:
        """Always connected."""

    def send_hints(self, topics: Sequence[str]) -> None:
        self._transport.deliver(topics)

    def send_job(self, batch: JobBatch) -> None:
        self._transport.jobs.append(batch)
        self._transport.deliver([batch.kind])

    def close(self) -> None:
        """Nothing is open."""


class _DeadSender(_MemorySender):
    def __init__(self) -> None:
        super().__init__(MemoryTransport())

    def connect(self) -> None:
        raise ConnectionRefusedError("nobody listens")


class _MemoryTap:
    def __init__(self, transport: MemoryTransport, topics: frozenset[str]) -> None:
        self._transport = transport
        self.topics = topics
        self.heard: set[str] = set()
        self.heard_any = threading.Event()
        self.dropped = threading.Event()

    def connect(self) -> None:
        self.heard = set()
        self.heard_any.clear()
        self.dropped.clear()
        self._transport.join(self)

    def drain(self, seconds: float) -> set[str]:
        self.heard_any.wait(seconds)
        if self.dropped.is_set():
            raise ConnectionResetError("dropped")
        self.heard_any.clear()
        heard, self.heard = self.heard, set()
        return heard

    def close(self) -> None:
        self._transport.leave(self)


async def first_look(ear: Ear) -> None:
    """Wait until the ear has subscribed, which fires all its topics, and then until it is silent."""
    assert await ear.wait(WITHIN) == ear.topics
    while await ear.wait(SILENCE):
        pass


class TransportLaws:
    """Subclass it, and give a `transport` fixture."""

    async def _told(self, transport: Transport, ear: Ear, *topics: str) -> set[str]:
        with transport.publisher() as publisher:
            publisher.announce(*topics)
            assert await asyncio.to_thread(publisher.flush, WITHIN)
        return await ear.wait(WITHIN)

    def test_a_listener_begins_with_a_look_at_everything(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["dispatch", "policy"]) as ear:
                assert await ear.wait(WITHIN) == {"dispatch", "policy"}

        asyncio.run(law())

    def test_what_was_announced_before_is_found_by_the_first_look(self, transport: Transport) -> None:
        async def law() -> None:
            with transport.publisher() as publisher:
                publisher.announce("dispatch")
                assert await asyncio.to_thread(publisher.flush, WITHIN)
            async with transport.listener(["dispatch"]) as ear:
                assert await ear.wait(WITHIN) == {"dispatch"}

        asyncio.run(law())

    def test_an_announcement_wakes_the_listener(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["runner.a", "policy"]) as ear:
                await first_look(ear)
                assert await self._told(transport, ear, "runner.a") == {"runner.a"}

        asyncio.run(law())

    def test_silence_is_an_empty_set(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["dispatch"]) as ear:
                await first_look(ear)
                assert await ear.wait(SILENCE) == set()

        asyncio.run(law())

    def test_a_topic_of_others_wakes_nobody(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["runner.a"]) as ear, transport.listener(["runner.b"]) as other:
                await first_look(ear)
                await first_look(other)
                assert await self._told(transport, ear, "runner.a", "runner", "runner.a.b") == {"runner.a"}
                assert await other.wait(SILENCE) == set()

        asyncio.run(law())

    def test_every_listener_of_a_topic_is_woken(self, transport: Transport) -> None:
        async def law() -> None:
            async with (
                transport.listener(["policy"]) as one,
                transport.listener(["policy", "train"]) as two,
                transport.listener(["policy"]) as three,
            ):
                for ear in (one, two, three):
                    await first_look(ear)
                assert await self._told(transport, one, "policy") == {"policy"}
                assert await two.wait(WITHIN) == {"policy"}
                assert await three.wait(WITHIN) == {"policy"}

        asyncio.run(law())

    def test_many_announcements_coalesce(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["dispatch", "policy"]) as ear:
                await first_look(ear)
                with transport.publisher() as publisher:
                    for _ in range(500):
                        publisher.announce("dispatch", "policy")
                    assert await asyncio.to_thread(publisher.flush, WITHIN)
                wakings, fired = 0, set()
                while heard := await ear.wait(SILENCE):
                    wakings, fired = wakings + 1, fired | heard
                assert fired == {"dispatch", "policy"}
                assert wakings < 100

        asyncio.run(law())

    def test_a_duplicate_is_one_more_look(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["dispatch"]) as ear:
                await first_look(ear)
                assert await self._told(transport, ear, "dispatch") == {"dispatch"}
                assert await self._told(transport, ear, "dispatch") == {"dispatch"}

        asyncio.run(law())

    def test_a_name_of_any_length_is_a_topic(self, transport: Transport) -> None:
        async def law() -> None:
            names = [f"runner.{'x' * 180}{end}" for end in ("1", "2")]
            async with transport.listener(names) as ear:
                await first_look(ear)
                assert await self._told(transport, ear, names[1]) == {names[1]}

        asyncio.run(law())

    def test_a_dropped_connection_wakes_everyone_and_comes_back(self, transport: Transport) -> None:
        async def law() -> None:
            with transport.publisher() as publisher:
                async with transport.listener(["dispatch", "policy"]) as ear:
                    await first_look(ear)
                    publisher.announce("dispatch")
                    assert await asyncio.to_thread(publisher.flush, WITHIN)
                    assert await ear.wait(WITHIN) == {"dispatch"}
                    await asyncio.to_thread(transport.drop_connections)
                    await first_look(ear)
                    publisher.announce("policy")
                    assert await asyncio.to_thread(publisher.flush, WITHIN)
                    assert "policy" in await ear.wait(WITHIN)

        asyncio.run(law())

    def test_an_emptied_broker_goes_on(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["dispatch"]) as ear:
                await first_look(ear)
                with transport.publisher() as publisher:
                    publisher.enqueue("grade", ["1", "2"])
                    assert await asyncio.to_thread(publisher.flush, WITHIN)
                    await asyncio.to_thread(transport.empty)
                    publisher.enqueue("grade", ["3"])
                    publisher.announce("dispatch")
                    assert await asyncio.to_thread(publisher.flush, WITHIN)
                assert "dispatch" in await ear.wait(WITHIN)

        asyncio.run(law())

    def test_a_dead_broker_neither_blocks_nor_fails_the_caller(self, transport: Transport) -> None:
        publisher = transport.dead()
        publisher.announce("dispatch")
        publisher.enqueue("grade", ["1"])
        assert not publisher.flush(0.3)
        publisher.close(timeout=0.3)
        assert publisher.stats().failed >= 1
        assert publisher.stats().sent == 0

    def test_a_wrong_kind_of_job_is_the_callers_fault(self, transport: Transport) -> None:
        with transport.publisher() as publisher, pytest.raises(ValueError, match="no kind of job"):
            publisher.enqueue("dispatch", ["1"])

    def test_a_closed_listener_leaves_the_others(self, transport: Transport) -> None:
        async def law() -> None:
            async with transport.listener(["dispatch"]) as ear:
                await first_look(ear)
                async with transport.listener(["dispatch"]) as other:
                    await first_look(other)
                assert await self._told(transport, ear, "dispatch") == {"dispatch"}

        asyncio.run(law())
