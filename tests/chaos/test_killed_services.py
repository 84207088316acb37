"""Real services die by SIGKILL under a run: it ends, its ledger reconciles, nothing is trained twice."""

import os
import signal
import time
from pathlib import Path

import pytest

from services.cli.demo.footprint import footprint
from services.cli.stack import running
from tests.chaos.arena import HUNG, Arena
from tests.e2e.scenario import options, wait_until
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]


def test_a_run_survives_the_death_of_every_service(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        victims = ("runner", "evaluator", "dispatcher", "rollout")
        for victim in victims:
            arena.kill(victim)
        return "one after another"

    arena.survives("runner, evaluator, leader, engine killed", strike)


def test_a_trainer_that_dies_between_its_two_transactions_trains_the_step_once(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        started = "SELECT count(*) FROM training_steps WHERE run_id = %s AND state = 'STARTED'"
        wait_until(lambda: arena.value(started, run.id) > 0, seconds=HUNG, what="a step under way")
        arena.kill("trainer")
        steps = arena.rows("SELECT step, state FROM training_steps WHERE run_id = %s ORDER BY step", run.id)
        return f"steps when it died: {', '.join(f'{step} {state}' for step, state in steps)}"

    arena.survives("trainer killed in a step", strike)


def test_a_standby_leads_after_the_leader_dies_and_no_sooner_than_its_lease(arena: Arena) -> None:
    """The gap in grants is the lease that the dead leader left; it is printed."""

    def strike(run: RunView) -> str:
        arena.send("dispatcher", signal.SIGSTOP)  # it cannot renew between the look and the blow
        epoch, lease = _leadership(arena)
        arena.kill("dispatcher")
        killed = arena.value("SELECT clock_timestamp()")
        wait_until(lambda: _leadership(arena)[0] > epoch, seconds=HUNG, what="a new leader")
        later = "SELECT min(t.at) FROM transitions t WHERE t.at > %s AND t.\"end\" = 'GRANTED'"
        wait_until(lambda: arena.value(later, killed) is not None, seconds=HUNG, what="a grant")
        first = arena.value(later, killed)
        assert first >= lease, "somebody granted while the dead leader's lease still ran"
        return f"no grant for {(first - killed).total_seconds():.1f} s"

    with arena.second_dispatcher():
        arena.survives("leader killed beside a standby", strike)


def _leadership(arena: Arena) -> tuple[int, object]:
    ((epoch, lease),) = arena.rows("SELECT epoch, lease_until FROM leaderships WHERE name = 'dispatcher'")
    return epoch, lease


def test_nothing_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    """The supervisor dies by SIGKILL in a child process of this test; the kernel takes the rest."""
    pid = os.fork()
    state = tmp_path / "state"
    if pid == 0:
        with running(options(state)):
            (tmp_path / "up").touch()
            signal.pause()
    deadline = time.monotonic() + 120
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 30
    while left := footprint(state).processes:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
