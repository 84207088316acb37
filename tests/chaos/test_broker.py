"""A broker that dies, forgets everything, or says what is not so: hints cost latency, never work."""

from typing import Any

import pytest
from kombu.connection import Connection

from tests.chaos.arena import HUNG, Arena
from tests.e2e.scenario import wait_until
from tiltyard.contracts.http import RunView
from tiltyard.contracts.messages import DISPATCH, GRADE, runner_topic
from tiltyard.queue import open_publisher
from tiltyard.queue.topology import job_queues
from tiltyard.store.database import new_id

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
FLOOD = 300


def test_a_broker_that_restarts_and_is_emptied_loses_no_rollout(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        arena.rabbitmq.kill()
        arena.rabbitmq.start()
        purged = 0
        with Connection(arena.rabbitmq.url) as connection:
            channel: Any = connection.channel()
            for queue in job_queues():
                bound = queue(channel)
                bound.declare()
                purged += bound.purge()
        return f"{purged} job messages thrown away"

    arena.survives("broker killed, restarted, emptied", strike)


def test_duplicate_late_and_forged_hints_change_nothing(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        ended = [r for (r,) in arena.rows("SELECT id FROM gradings WHERE state = 'DONE' LIMIT 50")]
        living = [r for (r,) in arena.rows("SELECT id FROM gradings WHERE state IN ('QUEUED', 'LEASED')")]
        forged = [new_id() for _ in range(50)]
        with open_publisher(arena.rabbitmq.url, arena.stack.database_url) as publisher:
            for _ in range(FLOOD // 50):
                publisher.enqueue(GRADE, [*ended, *living, *forged])
                assert publisher.flush(30)
                publisher.enqueue(GRADE, [*reversed(living), *reversed(forged)])
                publisher.announce(DISPATCH, runner_topic(new_id()))
                assert publisher.flush(30)
        told = f"{len(ended)} late, {len(living)} doubled in reverse, {len(forged)} forged"
        return f"{told} ids, {FLOOD // 50} times"

    arena.survives("duplicate, late, reordered, forged hints", strike)


def test_a_broker_under_a_memory_alarm_holds_nobody_up(arena: Arena) -> None:
    """It takes no publishes, and closes no connection: whoever publishes must not wait for it."""

    def strike(run: RunView) -> str:
        arena.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            wait_until(lambda: _alarmed(arena), seconds=30, what="the alarm")
            scored = "SELECT count(*) FROM rollouts WHERE run_id = %s AND state = 'RUNNING'"
            wait_until(lambda: arena.value(scored, run.id) == 0, seconds=HUNG, what="episodes' ends")
        finally:
            arena.rabbitmq.control("set_vm_memory_high_watermark", "0.4")
        wait_until(lambda: not _alarmed(arena), seconds=30, what="the end of the alarm")
        return "episodes ended and were committed meanwhile"

    arena.survives("broker under memory alarm", strike)


def _alarmed(arena: Arena) -> bool:
    (node,) = arena.rabbitmq.api("GET", "/nodes")
    return node["mem_alarm"]
