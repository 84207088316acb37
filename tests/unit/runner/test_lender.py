"""Leases over a pool that only counts."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest

from services.runner.lending.lender import LeaseEnded, Lender, NoSuchSandbox
from tiltyard.sandbox import SandboxBusy, WarmPool

T = TypeVar("T")


@dataclass
class CountingPool:
    """Lends numbers."""

    size: int = 2
    lent: list[Any] = field(default_factory=list[Any])
    made: int = 0

    async def borrow(self, count: int, timeout: float | None) -> list[Any]:
        await asyncio.sleep(0)
        if len(self.lent) + count > self.size:
            raise SandboxBusy("all are lent")
        boxes = list(range(self.made, self.made + count))
        self.made += count
        self.lent += boxes
        return boxes

    def give_back(self, boxes: list[Any]) -> None:
        for box in boxes:
            self.lent.remove(box)


class Desk:
    """A lender with a clock that a test turns."""

    def __init__(self) -> None:
        self.pool, self.now = CountingPool(), 0.0
        self.lender = Lender(cast(WarmPool, self.pool), clock=lambda: self.now)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_a_sandbox_that_nobody_asks_for_is_destroyed_when_its_lease_ends() -> None:
    desk = Desk()
    lease = run(desk.lender.lend(10, wait=0))
    desk.now = 9.9
    assert desk.lender.sweep() == 0
    desk.now = 10.0
    assert desk.lender.sweep() == 1
    assert desk.pool.lent == []
    with pytest.raises(LeaseEnded, match="nobody asked for it for 10 s"), desk.lender.using(lease.id):
        pass


def test_use_starts_the_lease_anew_and_no_lease_ends_during_use() -> None:
    desk = Desk()
    lease = run(desk.lender.lend(10, wait=0))
    desk.now = 9.0
    with desk.lender.using(lease.id):
        desk.now = 500.0
        assert desk.lender.sweep() == 0
    assert desk.lender.left(lease) == 10.0
    desk.now = 510.0
    assert desk.lender.sweep() == 1


def test_an_order_repeated_with_its_key_gets_the_same_sandbox() -> None:
    desk = Desk()

    async def twice() -> tuple[str, str]:
        one, two = await asyncio.gather(*(desk.lender.lend(10, wait=0, key="k") for _ in range(2)))
        return one.id, two.id

    one, two = run(twice())
    assert one == two
    assert desk.pool.made == 1


def test_a_key_whose_order_failed_or_whose_sandbox_ended_orders_anew() -> None:
    desk = Desk()
    desk.pool.size = 0

    async def story() -> None:
        with pytest.raises(SandboxBusy):
            await desk.lender.lend(10, wait=0, key="k")
        desk.pool.size = 1
        first = await desk.lender.lend(10, wait=0, key="k")
        desk.lender.release(first.id)
        assert (await desk.lender.lend(10, wait=0, key="k")).id != first.id

    run(story())


def test_releasing_twice_gives_back_once() -> None:
    desk = Desk()
    lease = run(desk.lender.lend(10, wait=0))
    desk.lender.release(lease.id)
    desk.lender.release(lease.id)
    assert desk.pool.lent == []


def test_a_name_that_was_never_lent_is_no_sandbox() -> None:
    with pytest.raises(NoSuchSandbox, match="there is no sandbox 'x' here"), Desk().lender.using("x"):
        pass
