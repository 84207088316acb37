"""The fake clock: sleepers wake at their own time and in order."""

import asyncio

from tiltyard.testing.clock import START, FakeClock


def test_time_moves_when_it_is_told_to() -> None:
    clock = FakeClock()
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    asyncio.run(clock.advance(90))
    assert ((clock.now() - START).total_seconds(), clock.monotonic()) == (90.0, 90.0)


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = FakeClock()
    clock.jump(-3600)
    assert (clock.now() - START).total_seconds() == -3600
    assert clock.monotonic() == 0.0


def test_sleepers_wake_at_their_own_time() -> None:
    clock, woken = FakeClock(), []

    async def beat(name: str, every: float) -> None:
        while True:
            await clock.sleep(every)
            woken.append((name, clock.monotonic()))

    async def law() -> None:
        beats = [asyncio.create_task(beat("slow", 5)), asyncio.create_task(beat("fast", 2))]
        await clock.advance(1.9)
        assert woken == []
        await clock.advance(4.1)
        for one in beats:
            one.cancel()

    asyncio.run(law())
    assert woken == [("fast", 2.0), ("fast", 4.0), ("slow", 5.0), ("fast", 6.0)]
