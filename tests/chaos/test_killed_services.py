"""Real services die by SIGKILL under a run: it ends, its ledger reconciles, nothing is trained twice."""

import itertools
import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from services.cli.demo.footprint import footprint
from services.cli.stack import Stack, running
from tests.e2e.scenario import finished, options, submit, train_run
from tiltyard.client import Client

VICTIMS = ("runner", "evaluator", "dispatcher", "rollout", "trainer")
STEPS = 10
SECONDS_BETWEEN_KILLS = 1.5


def _kill_in_turn(stack: Stack, client: Client, run_id: str) -> list[str]:
    """Kill one service after another until the run has ended; who died."""
    killed: list[str] = []
    for victim in itertools.cycle(VICTIMS):
        time.sleep(SECONDS_BETWEEN_KILLS)
        if client.run(run_id).state not in ("PENDING", "RUNNING") or len(killed) >= 4 * len(VICTIMS):
            return killed
        os.kill(stack.pid(victim), signal.SIGKILL)
        killed.append(victim)
    raise AssertionError("unreachable")


def _trained_more_than_once(database_url: str, run_id: str) -> list[str]:
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT t.rollout_id FROM transitions t JOIN rollouts r ON r.id = t.rollout_id"
            " WHERE r.run_id = %s AND t.\"end\" = 'TRAINED' GROUP BY t.rollout_id HAVING count(*) > 1",
            [run_id],
        )
        return [row[0] for row in rows]


@pytest.mark.sandbox
@pytest.mark.timeout(600)
def test_a_run_survives_the_death_of_every_service(tmp_path: Path) -> None:
    before = footprint(tmp_path)
    with running(options(tmp_path / "state")) as stack, Client(stack.url, stack.token) as client:
        submit(client, 12)
        run = client.start_run(train_run("chaos", steps=STEPS))
        killed = _kill_in_turn(stack, client, run.id)
        ended = finished(client, run, seconds=300)
        ledger = client.ledger(run.id)
        stats = client.stats(run.id)
        twice = _trained_more_than_once(stack.database_url, run.id)
    assert set(killed) == set(VICTIMS), f"the run was too short to kill everybody: {killed}"
    assert ended.state == "COMPLETED", ended.reason
    assert ended.step == STEPS
    assert ledger.discrepancies == ()
    assert twice == []
    assert set(stats.rewards) <= {"0.0", "1.0"}
    assert footprint(tmp_path).beyond(before) == {}


@pytest.mark.sandbox
@pytest.mark.timeout(300)
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
