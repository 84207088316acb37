"""A pool's health: when it lends nothing, what its canary says, and what it does then."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import Lab
from tiltyard.sandbox import (
    Box,
    BreakerPolicy,
    BreakerState,
    Canary,
    ExecOutcome,
    Limits,
    NodeUnhealthy,
    PoolHealth,
    SandboxBusy,
    SandboxUnavailable,
    WarmPool,
)
from tiltyard.sandbox.breaker import Breaker
from tiltyard.sandbox.health import Watch, pressure

LIMITS = Limits(memory_mb=64, pids=16, disk_mb=8, inodes=512)


async def _until(pool: WarmPool, holds: Callable[[PoolHealth], bool]) -> PoolHealth:
    """The first health of which that is true; a wait in vain ends after a minute."""
    async with asyncio.timeout(60):
        while not holds(pool.health()):  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.05)
    return pool.health()


def test_a_pool_that_works_is_well_and_says_what_it_saw(lab: Lab) -> None:
    async def use() -> None:
        async with WarmPool(size=2, limits=LIMITS) as pool:
            async with pool.acquire() as box:
                assert (await box.exec(["true"])).ok
            health = await _until(pool, lambda health: health.succeeded >= 3)
            assert (health.state, health.reason, health.since) == (BreakerState.closed, "", None)
            assert (health.failed, health.quarantined) == (0, 0)

    lab.run(use())


def test_boxes_that_die_under_their_commands_open_the_breaker_and_a_good_one_closes_it(lab: Lab) -> None:
    async def use() -> None:
        policy = BreakerPolicy(least=3, rest_seconds=0.5)
        async with WarmPool(size=2, limits=LIMITS, breaker=policy) as pool:
            for _ in range(3):
                assert await _killed(pool) is ExecOutcome.infra_error
            with pytest.raises(NodeUnhealthy, match=r"3 of the last 3 boxes .*tried again in") as refused:
                await pool.borrow(1, 10)
            assert 0 < refused.value.retry_after <= 0.5
            health = pool.health()
            assert health.state is BreakerState.open
            assert health.since is not None
            assert time.time() - 10 < health.since <= time.time()
            await _until(pool, lambda health: health.state is BreakerState.half_open)
            async with pool.acquire(timeout=60) as box:
                with pytest.raises(NodeUnhealthy):
                    await pool.borrow(1, 10)
                assert (await box.exec(["true"])).ok
            assert pool.health().state is BreakerState.closed
            async with pool.acquire_many(2, timeout=60) as boxes:
                assert len(boxes) == 2

    lab.run(use())


async def _killed(pool: WarmPool) -> ExecOutcome:
    """The end of a command whose box is killed from outside, as a failing machine would."""
    async with pool.acquire(timeout=60) as box:
        started = asyncio.Event()
        marker = f"tilt-canary-{os.urandom(6).hex()}"
        running = asyncio.create_task(
            box.exec(
                ["sh", "-c", "echo; exec sleep 100", marker],
                env={"MARK": marker},
                on_output=lambda *_: started.set(),
                wall_seconds=200,
            )
        )
        await started.wait()
        os.kill(_init_of(marker), signal.SIGKILL)
        return (await running).outcome


def _init_of(marker: str) -> int:
    """The PID 1 of the box in which a process has this in its environment, as this host counts."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and f"MARK={marker}".encode() in (process / "environ").read_bytes():
                status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
                return int(status["PPid"])
        except (OSError, KeyError):
            continue
    raise AssertionError(f"no process has {marker}")


class _Failing:
    """A pool in which ever more boxes cannot be made, and whose source goes away now and then."""

    def __init__(self) -> None:
        self.asked = 0

    async def counts(self) -> tuple[int, int, int, int]:
        self.asked += 1
        if self.asked % 2:
            raise asyncio.CancelledError
        return 0, 1, 0, 5 * self.asked

    async def lend(self, timeout: float) -> Box:
        raise SandboxBusy(f"none within {timeout} s")

    def take_back(self, box: Box, *, quarantine: bool) -> None:
        raise AssertionError("nothing was lent")


def test_boxes_that_cannot_be_made_open_it_and_no_box_is_no_drift(lab: Lab) -> None:
    async def use() -> None:
        breaker = Breaker(clock=time.monotonic)
        watch = Watch(_Failing(), breaker)
        assert await watch.sing(Canary())
        await watch.look()
        breaker.admit()
        await watch.look()
        with pytest.raises(NodeUnhealthy, match="10 of the last 11 boxes could not be made"):
            breaker.admit()
        assert (watch.health().state, watch.health().quarantined) == (BreakerState.open, 0)

    lab.run(use())


def test_a_canary_that_says_the_same_disturbs_nobody(lab: Lab) -> None:
    async def use() -> None:
        async with WarmPool(size=2, limits=LIMITS, canary=Canary(every_seconds=0.1)) as pool:
            health = await _until(pool, lambda health: health.canaries >= 3)
            assert (health.quarantined, health.drift) == (0, "")
            assert (await pool.stats()).drifted == 0

    lab.run(use())


def test_a_canary_that_says_something_new_has_its_box_quarantined_and_replaced(lab: Lab) -> None:
    async def use() -> None:
        canary = Canary(argv=("cat", "/proc/sys/kernel/random/uuid"), every_seconds=0.1)
        async with WarmPool(size=2, limits=LIMITS, canary=canary) as pool:
            health = await _until(pool, lambda health: health.quarantined >= 2)
            assert health.canaries > health.quarantined, "the first sets what must be said"
            assert "→" in health.drift
            assert (await pool.stats()).drifted >= 2
            async with pool.acquire_many(2, timeout=60) as boxes:
                assert [(await box.exec(["true"])).ok for box in boxes] == [True, True]

    lab.run(use())


def test_an_image_without_the_canarys_program_sings_all_the_same(lab: Lab) -> None:
    async def use() -> None:
        async with WarmPool(
            size=1, limits=LIMITS, canary=Canary(argv=("no-such",), every_seconds=0.1)
        ) as pool:
            health = await _until(pool, lambda health: health.canaries >= 2)
            assert health.quarantined == 0

    lab.run(use())


def test_pressure_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    both = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10={} avg60=0.00 avg300=0.00 total=1\n"
    (tmp_path / "cpu").write_text(both.format("97.48", "0.00"))
    (tmp_path / "memory").write_text(both.format("9.00", "3.25"))
    (tmp_path / "io").write_text("nonsense\n")
    assert pressure(tmp_path) == {"cpu": 97.48, "memory": 3.25}
    assert pressure(tmp_path / "none") == {}


def test_whoever_takes_a_machine_without_boxes_for_unavailable_takes_an_ill_one_so_too() -> None:
    assert issubclass(NodeUnhealthy, SandboxUnavailable)
