"""A database that restarts or freezes, and an object store that refuses, hangs or truncates."""

import signal
import time

import pytest

from tests.chaos.arena import Arena
from tests.e2e.scenario import wait_until
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
FAULT_SECONDS = 2.0


def test_a_database_that_restarts_costs_no_rollout(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        pid = arena.stack.pid("postgres")
        arena.send("postgres", signal.SIGINT)
        wait_until(lambda: arena.stack.pid("postgres") != pid, seconds=60, what="a new postgres")
        arena.stack.supervisor.await_ready("postgres")
        return ""

    arena.survives("database restarted", strike)


def test_a_database_that_freezes_is_waited_for(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        with arena.frozen("postgres"):
            time.sleep(FAULT_SECONDS)
        return ""

    arena.survives("database frozen", strike)


def test_an_object_store_that_refuses_hangs_and_truncates_is_tried_again(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        try:
            arena.s3.cut()
            time.sleep(FAULT_SECONDS)
            arena.s3.freeze()
            time.sleep(FAULT_SECONDS)
        finally:
            arena.s3.pass_on()
        arena.s3.truncate(40, times=10)
        return "one after another"

    arena.survives("object store refuses, hangs, truncates", strike)
