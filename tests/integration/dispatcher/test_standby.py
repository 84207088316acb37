"""Of many dispatchers one works; when it goes, another goes on."""

import asyncio
import time
from collections.abc import Callable

from services.dispatcher.loop import Loop
from tests.integration.dispatcher.conftest import Recorder
from tests.integration.store.world import World
from tiltyard.contracts.messages import DISPATCH
from tiltyard.queue import open_listener
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.servers import Postgres


def _loop(world: World, recorder: Recorder, holder: str) -> Loop:
    return Loop(work=world.work, publisher=recorder.publisher, holder=holder, doubts_time=False)


def _planned(world: World) -> int:
    return world.value("SELECT count(*) FROM rollouts")


def test_while_one_leads_the_other_does_nothing(world: World, recorder: Recorder) -> None:
    first, second = _loop(world, recorder, "d1"), _loop(world, recorder, "d2")
    first.turn()
    world.train()

    assert second.turn() is False
    assert _planned(world) == 0
    assert first.turn() is True
    assert _planned(world) > 0


def test_after_the_lease_the_other_takes_over(world: World, recorder: Recorder) -> None:
    first, second = _loop(world, recorder, "d1"), _loop(world, recorder, "d2")
    first.turn()
    world.sql("UPDATE leaderships SET lease_until = clock_timestamp() - interval '1 second'")
    world.train()

    assert second.turn() is True
    assert first.turn() is False
    assert world.value("SELECT holder FROM leaderships") == "d2"


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(_poll, condition)


def _poll(condition: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")


def test_a_dispatcher_that_stops_lets_the_next_one_lead_at_once(world: World, recorder: Recorder) -> None:
    """Two real loops, woken by Postgres; the second's lease would otherwise take eight seconds."""
    url = world.work.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def law() -> None:
        stops = [asyncio.Event(), asyncio.Event()]
        async with open_listener("", url, [DISPATCH]) as ear, open_listener("", url, [DISPATCH]) as other:
            first = asyncio.create_task(_loop(world, recorder, "d1").run(ear, stops[0]))
            await _until(lambda: world.column("SELECT holder FROM leaderships") == ["d1"])
            second = asyncio.create_task(_loop(world, recorder, "d2").run(other, stops[1]))
            world.train()
            await _until(lambda: _planned(world) > 0)
            stops[0].set()
            await first
            lapsed = world.value("SELECT lease_until <= clock_timestamp() FROM leaderships")
            await _until(lambda: world.column("SELECT holder FROM leaderships") == ["d2"])
            stops[1].set()
            await second
            assert lapsed or world.value("SELECT epoch FROM leaderships") == 2

    asyncio.run(law())


def test_a_dispatcher_outlives_its_database_connections(
    postgres: Postgres, work: UnitOfWork, world: World, recorder: Recorder
) -> None:
    url = world.work.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    async def law() -> None:
        stop = asyncio.Event()
        async with open_listener("", url, [DISPATCH]) as ear:
            running = asyncio.create_task(_loop(world, recorder, "d1").run(ear, stop))
            await _until(lambda: world.column("SELECT holder FROM leaderships") == ["d1"])
            for _ in range(20):
                await asyncio.to_thread(postgres.drop_connections)
                await asyncio.sleep(0.02)
            world.train()
            await _until(lambda: _planned(world) > 0)
            stop.set()
            await running

    asyncio.run(law())


def test_two_loops_that_turn_at_once_plan_each_group_once(world: World, recorder: Recorder) -> None:
    run = world.train(tasks=3, groups_per_step=4, group_size=2)
    loops = [_loop(world, recorder, f"d{n}") for n in range(4)]

    async def law() -> None:
        for _ in range(3):
            await asyncio.gather(*(asyncio.to_thread(loop.turn) for loop in loops))

    asyncio.run(law())

    planned = world.value("SELECT groups_planned FROM runs WHERE id = :r", r=run)
    assert planned == world.value("SELECT count(*) FROM groups WHERE run_id = :r", r=run) == 8


def test_a_dispatcher_whose_database_is_gone_stops_without_it(recorder: Recorder) -> None:
    """The lease runs out by itself."""
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    nowhere = UnitOfWork(url)

    async def law() -> None:
        stop = asyncio.Event()
        lost = Loop(work=nowhere, publisher=recorder.publisher, holder="d1", doubts_time=False)
        asyncio.get_running_loop().call_later(0.1, stop.set)
        async with open_listener("", url, [DISPATCH]) as ear:
            await lost.run(ear, stop)
        assert lost.doubts_time

    asyncio.run(law())
    nowhere.close()
