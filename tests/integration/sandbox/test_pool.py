"""The pool: who gets a box, when, and what happens to those who go away."""

import asyncio
import resource

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab
from tiltyard.sandbox import (
    ImageFault,
    InvalidLimits,
    Limits,
    SandboxBusy,
    SandboxGone,
    SandboxUnavailable,
    WarmPool,
    doctor,
)

pytestmark = pytest.mark.sandbox


def test_every_holder_gets_a_box_that_nobody_used(lab: Lab) -> None:
    async def use() -> set[str]:
        seen = set()
        for _ in range(20):
            async with lab.pool.acquire() as box:
                assert (await box.exec(["sh", "-c", "test ! -e used && touch used"])).ok
                seen.add(box.id)
        return seen

    assert len(lab.run(use())) == 20


def test_who_waits_too_long_is_told_and_takes_nothing(lab: Lab) -> None:
    async def crowd() -> None:
        async with lab.pool.acquire_many(lab.pool.size):
            with pytest.raises(SandboxBusy, match=r"within 0\.05 s"):
                await lab.pool.borrow(1, 0.05)
        async with lab.pool.acquire_many(lab.pool.size, timeout=60) as boxes:
            assert len(boxes) == lab.pool.size

    lab.run(crowd())


def test_waiters_are_served_in_order_and_a_large_one_is_not_starved(lab: Lab) -> None:
    async def queue() -> list[str]:
        order: list[str] = []

        async def wait(name: str, count: int) -> None:
            async with lab.pool.acquire_many(count, timeout=60):
                order.append(name)

        async with lab.pool.acquire_many(lab.pool.size):
            waiting = []
            for name, count in (("first", 1), ("all", lab.pool.size), ("last", 1)):
                waiting.append(asyncio.ensure_future(wait(name, count)))
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        return order

    assert lab.run(queue()) == ["first", "all", "last"]


def test_a_cancelled_waiter_frees_its_place(lab: Lab) -> None:
    async def cancel() -> None:
        for delay in (0, 0.001, 0.003, 0.01):
            async with lab.pool.acquire_many(lab.pool.size, timeout=60):
                waiting = asyncio.ensure_future(lab.pool.borrow(2, None))
                await asyncio.sleep(0)
            await asyncio.sleep(delay)
            waiting.cancel()
            for boxes in await asyncio.gather(waiting, return_exceptions=True):
                if isinstance(boxes, list):
                    lab.pool.give_back(boxes)
        stats = await lab.pool.stats()
        assert stats.lent == 0
        async with lab.pool.acquire_many(lab.pool.size, timeout=60):
            pass

    lab.run(cancel())


def test_more_than_the_pool_holds_is_refused_at_once(lab: Lab) -> None:
    with pytest.raises(SandboxBusy, match="make the pool larger"):
        lab.pool.acquire_many(lab.pool.size + 1)


def test_a_holder_that_keeps_its_box_after_release_is_refused(lab: Lab) -> None:
    async def keep() -> None:
        async with lab.pool.acquire() as box:
            pass
        with pytest.raises(SandboxGone, match="released"):
            await box.exec(["true"])

    lab.run(keep())


def test_a_closed_pool_says_so(lab: Lab) -> None:
    async def use() -> None:
        pool = WarmPool(size=1, limits=LIMITS)
        with pytest.raises(SandboxGone, match="not running"):
            await pool.borrow(1, None)
        async with pool, pool.acquire():
            waiting = asyncio.ensure_future(pool.borrow(1, None))
            await asyncio.sleep(0)
            await pool.close()
            with pytest.raises(SandboxGone, match="closed"):
                await waiting

    lab.run(use())


def test_an_unknown_image_is_refused(lab: Lab) -> None:
    async def start() -> None:
        with pytest.raises(ImageFault, match="host"):
            await WarmPool(image="ubuntu", size=1).start()

    lab.run(start())


def test_a_pool_without_the_rights_is_refused_with_the_cure(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    async def start() -> None:
        with pytest.raises(SandboxUnavailable, match="sudo"):
            await WarmPool(size=1).start()

    lab.run(start())


def test_a_pool_of_no_size_is_refused() -> None:
    with pytest.raises(InvalidLimits, match="size"):
        WarmPool(size=0)


def test_the_doctor_finds_this_host_usable(lab: Lab) -> None:
    report = lab.run(doctor())
    assert report.usable, report
    assert {"rights", "helpers", "cgroup.memory", "cgroup.pids", "cgroup.cpu", "box", "seccomp"} <= {
        check.name for check in report.checks
    }


def test_limits_hold_for_every_box_of_a_pool(lab: Lab) -> None:
    async def measure() -> str:
        async with (
            WarmPool(size=1, limits=Limits(memory_mb=100, pids=7, cpus=0.5, disk_mb=3)) as pool,
            pool.acquire() as box,
        ):
            result = await box.exec(["sh", "-c", "df -m / | tail -1 | awk '{print $2}'; ulimit -n"])
            return result.stdout.decode()

    assert lab.run(measure()) == "3\n256\n"


def test_a_pool_too_large_for_the_descriptors_of_this_process_is_refused_with_the_limit(lab: Lab) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def start() -> None:
        with pytest.raises(SandboxUnavailable, match=r"900 boxes needs 964 descriptors.* 512.*ulimit -Sn"):
            await WarmPool(size=900).start()

    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        lab.run(start())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
