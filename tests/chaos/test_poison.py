"""A rollout that kills its runner each time ends DEAD, with evidence; those beside it all end well."""

import os
import signal
import time
from contextlib import suppress

import pytest

from tests.chaos.arena import HUNG, Arena
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
MOST_KILLS = 6
RUNNING = (
    "SELECT id, losses FROM rollouts WHERE run_id = %s AND state = 'RUNNING' AND (id = %s OR %s)"
    " ORDER BY losses DESC, id LIMIT 1"
)


def test_a_poison_rollout_ends_dead_and_its_neighbours_pay_nothing(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        poison, kills = "", 0
        while _state(arena, poison) != "DEAD":
            poison = _caught(arena, run, poison)
            arena.kill("runner")
            kills += 1
            assert kills <= MOST_KILLS, "no rollout is found out"
            _settled(arena, poison)
        return f"{kills} runners killed; {_evidence(arena, poison)}"

    run = arena.survives("a poison rollout kills its runners", strike)
    ends = dict(arena.rows("SELECT state, count(*) FROM rollouts WHERE run_id = %s GROUP BY state", run.id))
    assert ends.get("DEAD") == 1
    assert not {"FAILED", "INVALID", "EXPIRED"} & set(ends), ends


def _caught(arena: Arena, run: RunView, poison: str) -> str:
    """Stop the runner while the poison is aboard; the most suspect rollout that runs, while it is unknown."""
    deadline = time.monotonic() + HUNG
    while True:
        pid = arena.stack.pid("runner")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            found = arena.rows(RUNNING, run.id, poison, poison == "")
            if found:
                return found[0][0]
            os.kill(pid, signal.SIGCONT)
        if poison and _state(arena, poison) not in ("QUEUED", "GRANTED", "RUNNING"):
            poison = ""  # it got away between two looks
        assert time.monotonic() < deadline, "nothing runs"
        time.sleep(0.03)


def _settled(arena: Arena, poison: str) -> None:
    """Until the loss of its runner is known."""
    deadline = time.monotonic() + HUNG
    while _state(arena, poison) == "RUNNING":
        assert time.monotonic() < deadline, "the loss of a runner goes unnoticed"
        time.sleep(0.02)


def _state(arena: Arena, rollout: str) -> str:
    return arena.value("SELECT coalesce((SELECT state FROM rollouts WHERE id = %s), '')", rollout)


def _evidence(arena: Arena, rollout: str) -> str:
    last = "SELECT reason FROM transitions WHERE rollout_id = %s ORDER BY seq DESC LIMIT 1"
    lost = "SELECT count(*) FROM attempts WHERE rollout_id = %s AND outcome = 'runner_lost'"
    reason, attempts = arena.value(last, rollout), arena.value(lost, rollout)
    assert "runner_lost" in reason
    assert attempts >= 3, "twice beside others, once alone"
    return f"DEAD after {attempts} lost attempts"
