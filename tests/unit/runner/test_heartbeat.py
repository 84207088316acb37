"""What silence means: first nothing is done outside, then everything aboard dies."""

import asyncio
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import OperationalError

from services.runner.heartbeat import DEAD_SECONDS, QUIET_SECONDS, Heartbeat
from tiltyard.store.fleet import Orders
from tiltyard.store.moves import Key

NO_ORDERS = Orders(stop=(), draining=False)
STOP = Orders(stop=(Key(rollout_id="r", fence=1),), draining=False)


class Database:
    """Answers heartbeats as a test says; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def run(self, *_: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def _away() -> OperationalError:
    return OperationalError("UPDATE", {}, Exception("connection refused"))


def _heartbeat(database: Any, clock: Clock, obey: Callable[[Orders], None] = lambda _: None) -> Heartbeat:
    return Heartbeat(database, "i", obey, clock=clock)


def test_a_beat_brings_orders() -> None:
    async def main() -> None:
        seen: list[Orders] = []
        await _heartbeat(Database(STOP), Clock(), seen.append).beat()
        assert seen == [STOP]

    asyncio.run(main())


def test_a_beat_that_touches_no_row_ends_the_incarnation() -> None:
    async def main() -> None:
        heartbeat = _heartbeat(Database(None), Clock())
        await heartbeat.beat()
        assert heartbeat.lost.is_set()
        assert not heartbeat.may_act.is_set()

    asyncio.run(main())


def test_silence_stops_what_acts_outside_and_an_answer_lets_it_go_on() -> None:
    async def main() -> None:
        clock = Clock()
        heartbeat = _heartbeat(Database(_away(), _away(), NO_ORDERS), clock)
        clock.now += QUIET_SECONDS - 1
        await heartbeat.beat()
        assert heartbeat.may_act.is_set()
        clock.now += 2
        await heartbeat.beat()
        assert not heartbeat.may_act.is_set()
        assert not heartbeat.lost.is_set()
        await heartbeat.beat()
        assert heartbeat.may_act.is_set()

    asyncio.run(main())


def test_long_silence_ends_the_incarnation() -> None:
    async def main() -> None:
        clock = Clock()
        heartbeat = _heartbeat(Database(_away()), clock)
        clock.now += DEAD_SECONDS
        await heartbeat.beat()
        assert heartbeat.lost.is_set()

    asyncio.run(main())


def test_beating_ends_when_the_incarnation_does() -> None:
    async def main() -> None:
        heartbeat = Heartbeat(Database(NO_ORDERS, None), "i", lambda _: None, every=0.0)  # pyright: ignore
        await asyncio.wait_for(heartbeat.beat_until_lost(), 5)

    asyncio.run(main())
