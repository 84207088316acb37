"""A runner whose clock jumps: leases, deadlines and the order of things follow the database's clock."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.clock import Clock
from tests.chaos.far import far_runner
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
JUMP = 600
"""Seconds; farther than any lease lasts, and less than S3 takes for a forged signature."""
ATTEMPTS = "SELECT count(*) FROM attempts a JOIN rollouts r ON r.id = a.rollout_id WHERE r.run_id = %s AND"


def test_the_clock_that_is_moved_is_the_one_that_a_process_reads(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    clock.jump_to(JUMP)
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], env=clock.environment, capture_output=True
    )
    assert JUMP - 60 < float(told.stdout) - time.time() < JUMP + 60


def test_a_runner_whose_clock_jumps_loses_nothing_and_keeps_nothing_longer(
    arena: Arena, tmp_path: Path
) -> None:
    clock = Clock(tmp_path)

    def strike(run: RunView) -> str:
        far.until_aboard()
        clock.jump_to(JUMP)
        arena.until_running(run)
        clock.jump_to(-JUMP)
        return f"{JUMP} s ahead, then {JUMP} s behind"

    with far_runner(arena, tmp_path, clock.environment) as far:
        run = arena.survives("a runner's clock jumps", strike)
    lost = f"{ATTEMPTS} a.outcome = 'runner_lost'"
    assert arena.value(lost, run.id) == 0, "a clock alone took work from a runner"
    wrong = f"{ATTEMPTS} NOT (a.granted_at <= a.claimed_at AND a.claimed_at <= a.ended_at)"
    assert arena.value(wrong, run.id) == 0, "times in rows are the runner's own"
    far_off = f"{ATTEMPTS} abs(extract(epoch FROM a.ended_at - clock_timestamp())) > {JUMP // 2}"
    assert arena.value(far_off, run.id) == 0, "times in rows are the runner's own"
