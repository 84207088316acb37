"""A runner that has to yield: what is on its way ends, what is handed in is kept, what was taken dies."""

import asyncio
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.runner.app import parts
from services.runner.incarnation import Incarnation
from services.runner.settings import RunnerSettings
from tiltyard.contracts.messages import runner_topic
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor, State
from tiltyard.objects import ObjectInfo, ObjectStore
from tiltyard.store.moves import Key, end_attempts, move
from tiltyard.telemetry.metrics import Metrics
from tiltyard.telemetry.setup import setup
from tiltyard.testing.processes import free_port
from tiltyard.testing.rows import Rows

SLOW = {"script_latency_ms": "3600000"}


def _key(rows: Rows, rollout: str) -> Key:
    return Key(rollout_id=rollout, fence=rows.value("SELECT fence FROM rollouts WHERE id = :id", id=rollout))


def _told(rows: Rows, rollout: str) -> Key:
    """As the leader tells it to yield."""
    key = _key(rows, rollout)
    with rows.work() as session:
        assert move(
            session, [key], State.PREEMPTING, actor=Actor.DISPATCHER, sets=", preemptions = r.preemptions + 1"
        )
    return key


def test_what_yields_is_stopped_free_of_charge_and_the_others_go_on(yard: Any) -> None:
    seeded = yard.seed()
    yard.start_rollout(**SLOW)
    _, incarnation = yard.start_runner()
    ids = yard.rows.group(seeded, 3)
    yard.rows.grant(ids, incarnation)
    yard.until_states(seeded, *["RUNNING"] * 3)

    first, second = (_told(yard.rows, rollout) for rollout in ids[:2])

    yard.until_states(seeded, "QUEUED", "QUEUED", "RUNNING")
    assert yard.rows.value("SELECT sum(infrastructure_failures) FROM rollouts") == 0
    assert yard.rows.column("SELECT outcome FROM attempts WHERE ended_at IS NOT NULL") == ["preempted"] * 2
    assert _key(yard.rows, ids[0]) == first, "its own holder gave it back: nothing is fenced off"
    assert _key(yard.rows, ids[1]) == second
    yard.rows.grant(ids[:2], incarnation)
    yard.until_states(seeded, *["RUNNING"] * 3)


def test_what_was_taken_from_a_runner_dies_on_it(yard: Any) -> None:
    """The grace is over and the rollout is fenced off, though the runner was told of nothing before."""
    port, seeded = free_port(), yard.seed()
    yard.start_rollout(**SLOW)
    service = yard.processes.start(
        "services.runner", rollout_url=yard.rollout_url, node="n", metrics_port=str(port)
    )
    yard.processes.until(lambda: bool(yard.incarnations()), "a runner joins")
    ids = yard.rows.group(seeded, 2)
    yard.rows.grant(ids, yard.incarnations()[0])
    yard.until_states(seeded, "RUNNING", "RUNNING")
    yard.processes.until(lambda: _aboard(port) == 2, "both episodes are under way")
    with yard.rows.work() as session:
        key = _told(yard.rows, ids[0])
        (taken,) = move(session, [key], State.QUEUED, actor=Actor.DISPATCHER, only_from=[State.PREEMPTING])
        end_attempts(session, [Key(rollout_id=ids[0], fence=taken.fence)], Outcome.PREEMPTED)

    yard.processes.until(lambda: _aboard(port) == 1, "the episode dies")
    assert sorted(yard.rows.states(seeded)) == ["QUEUED", "RUNNING"]
    assert service.process.poll() is None


def _aboard(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("tiltyard_runner_aboard ")).split()[1])


class Slow:
    """A store that takes each object when it is let."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.asked, self.let = threading.Event(), threading.Event()

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> ObjectInfo:
        self.asked.set()
        self.let.wait(60)
        return self._store.put(key, data, if_absent=if_absent)


def test_an_attempt_that_is_being_handed_in_keeps_its_work(
    yard: Any, database_url: str, tmp_path: Path
) -> None:
    seeded = yard.seed()
    yard.start_rollout()
    settings = RunnerSettings(
        database_url=database_url, objects_url=f"file://{tmp_path}/objects", rollout_url=yard.rollout_url
    )
    (rollout,) = yard.rows.group(seeded, 1)

    async def main() -> None:
        stop, telemetry = asyncio.Event(), setup("runner")
        async with parts(settings, replace(telemetry, metrics=Metrics()), None) as made:
            slow = Slow(made.objects)
            runner = Incarnation(replace(made, objects=slow))  # type: ignore[arg-type]
            living = asyncio.create_task(runner.live(stop))
            await asyncio.to_thread(yard.processes.until, lambda: bool(yard.incarnations()), "it joins")
            yard.rows.grant([rollout], runner.id)
            made.publisher.announce(runner_topic(runner.id))
            await asyncio.to_thread(slow.asked.wait, 60)
            key = _told(yard.rows, rollout)
            for _ in range(2):
                await runner._heartbeat.beat()
            assert yard.rows.states(seeded) == ["PREEMPTING"]
            slow.let.set()
            await asyncio.to_thread(yard.until_states, seeded, "PRODUCED")
            assert _key(yard.rows, rollout) == key
            stop.set()
            await living

    asyncio.run(main())
    assert yard.rows.column("SELECT outcome FROM attempts") == ["completed"]
    assert yard.rows.column("SELECT state FROM gradings") == ["QUEUED"]
