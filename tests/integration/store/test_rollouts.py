"""Planned, granted and cancelled."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.integration.store.world import TRACE, World
from tiltyard.core.rollout import Actor, State
from tiltyard.store import attempts, rollouts
from tiltyard.store.moves import Key
from tiltyard.store.rollouts import Granting


@pytest.fixture
def run(world: World) -> str:
    return world.train()


def _cancel(world: World, keys: list[Key]) -> None:
    with world.work() as session:
        rollouts.cancel(session, keys, actor=Actor.REGISTRY, reason="enough")


def test_a_planned_group_has_its_members_queued_with_their_first_transition(world: World, run: str) -> None:
    ids = world.group(run, 3)

    assert world.states(ids) == ["QUEUED"] * 3
    assert sorted(world.column("SELECT member FROM rollouts")) == [0, 1, 2]
    assert world.column("SELECT DISTINCT reason FROM transitions") == ["planned"]
    assert world.value("SELECT size FROM groups") == 3


def test_a_group_is_planned_whole_or_not_at_all(world: World, run: str) -> None:
    world.group(run)
    world.sql("UPDATE runs SET groups_planned = 0 WHERE id = :run", run=run)

    with pytest.raises(IntegrityError, match="uq_groups_run_id_index"):
        world.group(run)
    assert world.value("SELECT count(*) FROM rollouts") == 2


def test_planning_nothing_plans_nothing(world: World) -> None:
    with world.work() as session:
        assert rollouts.plan(session, []) == []


def test_a_grant_names_the_runner_and_makes_the_attempts_row(world: World, run: str) -> None:
    (rollout,), me = world.group(run, 1), world.join()

    (moved,) = world.grant([rollout], me)

    row = world.row(rollout)
    assert (row.state, row.fence, row.incarnation) == ("GRANTED", 1, me)
    assert moved.fence == 1
    assert (
        world.value("SELECT traceparent FROM attempts WHERE rollout_id = :r AND fence = 1", r=rollout)
        == TRACE
    )


def test_a_grant_of_what_is_no_longer_queued_makes_no_attempt(world: World, run: str) -> None:
    (rollout,), me = world.group(run, 1), world.join()
    key = world.key(rollout)
    _cancel(world, [key])

    with world.work() as session:
        assert rollouts.grant(session, [Granting(key=key, incarnation=me, traceparent=TRACE)]) == []
    assert world.value("SELECT count(*) FROM attempts") == 0


def test_two_that_grant_at_once_grant_once(world: World, run: str) -> None:
    ids, runners = world.group(run, 8), [world.join(), world.join()]
    together = threading.Barrier(2)

    def grant(me: str) -> int:
        grants = [Granting(key=world.key(i), incarnation=me, traceparent=TRACE) for i in ids]
        together.wait()
        with world.work() as session:
            return len(rollouts.grant(session, grants))

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(grant, runners)) == 8
    assert world.value("SELECT count(*) FROM attempts") == 8


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (State.QUEUED, "CANCELLED"),
        (State.GRANTED, "CANCELLED"),
        (State.RUNNING, "CANCELLING"),
        (State.PREEMPTING, "CANCELLED"),
        (State.CANCELLING, "CANCELLING"),
        (State.PRODUCED, "CANCELLED"),
        (State.SCORED, "CANCELLED"),
        (State.READY, "CANCELLED"),
        (State.TRAINING, "CANCELLED"),
        (State.TRAINED, "TRAINED"),
        (State.FAILED, "FAILED"),
    ],
)
def test_a_cancel_asks_the_holder_and_ends_the_rest(world: World, run: str, state: State, end: str) -> None:
    (rollout,) = world.group(run, 1)

    _cancel(world, [world.walk(rollout, state)])

    assert world.state(rollout) == end


def test_a_cancel_ends_the_attempt_and_the_grading(world: World, run: str) -> None:
    ids = world.group(run, 2)
    keys = {k.rollout_id: k for k in world.aboard(ids[:1], world.join())}
    world.produce(list(keys.values()))
    world.grant(ids[1:], world.join())

    _cancel(world, [world.key(i) for i in ids])

    assert world.states(ids) == ["CANCELLED", "CANCELLED"]
    assert world.column("SELECT state FROM gradings") == ["CANCELLED"]
    assert world.value("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == 0
    assert world.value("SELECT outcome FROM attempts WHERE rollout_id = :r", r=ids[1]) == "cancelled"


def test_a_rollout_that_is_claimed_while_it_is_cancelled_is_told_to_stop(world: World, run: str) -> None:
    """Whichever comes first, the cancel is not lost."""
    ids, me = world.group(run, 24), world.join(slots=24)
    world.grant(ids, me)
    keys = [world.key(i) for i in ids]
    together = threading.Barrier(2)

    def claim() -> None:
        together.wait()
        for _ in range(24):
            world.claim(me, 1)

    def cancel() -> None:
        together.wait()
        for key in keys:
            _cancel(world, [key])

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(claim), pool.submit(cancel)]:
            done.result()

    assert set(world.states(ids)) <= {"CANCELLED", "CANCELLING"}


def test_a_cancel_waits_for_a_claim_under_way(world: World, run: str) -> None:
    (rollout,), me = world.group(run, 1), world.join()
    world.grant([rollout], me)
    key = world.key(rollout)

    with ThreadPoolExecutor(1) as pool:
        with world.work() as session:
            attempts.claim(session, me, 1)
            cancelling = pool.submit(_cancel, world, [key])
            _wait_for_a_lock(world)
        cancelling.result()

    assert world.state(rollout) == "CANCELLING"


def _wait_for_a_lock(world: World) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    for _ in range(2_000):
        with world.work() as session:
            if session.execute(waiting).scalar_one():
                return
    raise AssertionError("nobody waits for a lock")
