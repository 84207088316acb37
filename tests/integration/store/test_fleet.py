"""Runners: superseded at once, lost in one transaction with what they had aboard."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tests.integration.store.world import World
from tiltyard.core.capacity import NOTHING
from tiltyard.core.fleet import GiveUp, Runner
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor, State
from tiltyard.store import fleet, rollouts
from tiltyard.store.moves import Key, end_attempts, move


@pytest.fixture
def run(world: World) -> str:
    return world.train(rollouts={"infrastructure_retries": 9})


def _lose(world: World, incarnation: str) -> list[str]:
    with world.work() as session:
        return fleet.lose(session, GiveUp(incarnation=incarnation, silent_for=timedelta(seconds=31)))


def _alive(world: World) -> dict[str, Runner]:
    with world.work() as session:
        return {r.incarnation: r for r in fleet.alive(session)}


def test_a_restarted_runner_supersedes_its_predecessor_at_once(world: World, run: str) -> None:
    old = world.join(node="n1")
    (rollout,) = world.group(run, 1)
    world.aboard([rollout], old)

    new = world.join(node="n1")
    other = world.join(node="n2")

    assert set(_alive(world)) == {new, other}
    assert world.state(rollout) == "QUEUED"
    assert world.value("SELECT reason FROM runners WHERE incarnation = :i", i=old) == f"superseded by {new}"


def test_a_heartbeat_that_touches_no_row_says_so(world: World) -> None:
    me = world.join()

    with world.work() as session:
        assert fleet.heartbeat(session, me) == fleet.Orders(stop=(), draining=False)
    _lose(world, me)
    with world.work() as session:
        assert fleet.heartbeat(session, me) is None
        assert fleet.heartbeat(session, "nobody") is None


def test_a_heartbeat_moves_the_clock_of_its_own_incarnation(world: World) -> None:
    me, other = world.join(), world.join()
    world.sql("UPDATE runners SET last_heartbeat = clock_timestamp() - interval '1 hour'")

    with world.work() as session:
        fleet.heartbeat(session, me)

    alive = _alive(world)
    assert alive[me].last_heartbeat - alive[other].last_heartbeat > timedelta(minutes=59)
    with world.work() as session:
        assert fleet.last_heartbeat(session) == alive[me].last_heartbeat


def test_a_heartbeat_brings_what_is_to_be_stopped_under_the_fence_that_its_runner_knows(
    world: World, run: str
) -> None:
    ids, me = world.group(run, 3), world.join()
    keys = {k.rollout_id: k for k in world.aboard(ids, me)}
    with world.work() as session:
        rollouts.cancel(session, [keys[ids[0]]], actor=Actor.REGISTRY, reason="enough")
        move(session, [keys[ids[1]]], State.PREEMPTING, actor=Actor.DISPATCHER)

    with world.work() as session:
        orders = fleet.heartbeat(session, me)

    assert orders is not None
    assert (orders.stop, orders.yields, orders.taken) == ((keys[ids[0]],), (keys[ids[1]],), ())


def test_a_runner_learns_what_was_taken_from_it_for_as_long_as_it_may_be_silent(
    world: World, run: str
) -> None:
    """Past its grace a rollout is fenced off: whatever still runs of it has to die."""
    ids, me, other = world.group(run, 3), world.join(), world.join()
    yielding, cancelled = world.aboard(ids[:2], me)
    world.aboard(ids[2:], other)
    with world.work() as session:
        move(session, [yielding, cancelled], State.PREEMPTING, actor=Actor.DISPATCHER)
        rollouts.cancel(session, [cancelled], actor=Actor.REGISTRY, reason="enough")
        move(session, [yielding], State.QUEUED, actor=Actor.DISPATCHER, only_from=[State.PREEMPTING])
    with world.work() as session:
        end_attempts(session, [world.key(yielding.rollout_id)], Outcome.PREEMPTED)

    def taken(incarnation: str) -> set[Key]:
        with world.work() as session:
            orders = fleet.heartbeat(session, incarnation)
        assert orders is not None
        return set(orders.taken)

    assert taken(me) == {yielding, cancelled}
    assert taken(other) == set()
    world.sql("UPDATE attempts SET ended_at = ended_at - interval '61 seconds'")
    assert taken(me) == set()


def test_a_draining_runner_learns_it_by_its_heartbeat(world: World) -> None:
    me = world.join()
    world.sql("UPDATE runners SET draining = true")

    with world.work() as session:
        orders = fleet.heartbeat(session, me)

    assert orders is not None
    assert orders.draining
    assert _alive(world)[me].room == NOTHING


def test_a_runner_carries_what_was_granted_until_it_ended(world: World, run: str) -> None:
    ids, me = world.group(run, 3), world.join()
    world.grant(ids, me)
    assert _alive(world)[me].aboard == 3

    keys = [c.key for c in world.claim(me)]
    world.produce(keys[:1])
    world.fail(keys[1])

    assert _alive(world)[me].aboard == 1


def test_losing_a_runner_takes_back_everything_aboard(world: World, run: str) -> None:
    granted, running, cancelling, preempting, produced, theirs = ids = world.group(run, 6)
    me, other = world.join(), world.join()
    keys = {k.rollout_id: k for k in world.aboard([running, cancelling, preempting, produced], me)}
    world.grant([granted], me)
    world.aboard([theirs], other)
    world.produce([keys[produced]])
    with world.work() as session:
        move(session, [keys[cancelling]], State.CANCELLING, actor=Actor.REGISTRY)
        move(session, [keys[preempting]], State.PREEMPTING, actor=Actor.DISPATCHER)

    assert set(_lose(world, me)) == {granted, running, cancelling, preempting}

    assert world.states(ids) == ["QUEUED", "QUEUED", "CANCELLED", "QUEUED", "PRODUCED", "RUNNING"]
    charged = {i: world.row(i).infrastructure_failures for i in ids}
    assert charged == {**dict.fromkeys(ids, 0), running: 1}
    assert world.row(running).fence > keys[running].fence
    assert world.column("SELECT DISTINCT outcome FROM attempts WHERE outcome LIKE 'runner%'") == [
        "runner_lost"
    ]
    assert world.value("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == 1


def test_losing_a_full_runner_takes_no_more_statements_than_losing_two_rollouts(
    world: World, run: str
) -> None:
    few, many = world.join(), world.join()
    world.aboard(world.group(run, 2), few)
    world.aboard(world.group(run, 100), many)

    assert _statements(world, lambda: _lose(world, many)) == _statements(world, lambda: _lose(world, few))


def _statements(world: World, act: Callable[[], object]) -> int:
    """How many statements go to the database meanwhile."""
    sent: list[str] = []

    def note(*call: Any) -> None:
        sent.append(call[2])

    event.listen(world.work.engine, "before_cursor_execute", note)
    try:
        act()
    finally:
        event.remove(world.work.engine, "before_cursor_execute", note)
    return len(sent)


def test_a_runner_is_lost_once(world: World, run: str) -> None:
    (rollout,), me = world.group(run, 1), world.join()
    world.aboard([rollout], me)

    assert _lose(world, me) == [rollout]
    assert _lose(world, me) == []
    assert world.row(rollout).losses == 1


def test_a_runner_that_leaves_gives_back_free_of_charge(world: World, run: str) -> None:
    (rollout,), me = world.group(run, 1), world.join()
    world.aboard([rollout], me)

    with world.work() as session:
        fleet.leave(session, me)

    row = world.row(rollout)
    assert (row.state, row.losses, row.infrastructure_failures) == ("QUEUED", 0, 0)
    assert _alive(world) == {}


def test_a_rollout_aboard_two_lost_runners_runs_alone_and_lost_alone_is_dead(world: World, run: str) -> None:
    (rollout,) = world.group(run, 1)
    seen: list[tuple[str, bool]] = []
    for _ in range(3):
        me = world.join()
        world.aboard([rollout], me)
        assert _alive(world)[me].lonely == world.row(rollout).alone
        _lose(world, me)
        seen.append((world.state(rollout), world.row(rollout).alone))

    assert seen[:2] == [("QUEUED", False), ("QUEUED", True)]
    assert seen[2][0] == "DEAD"
    assert (
        world.value("SELECT reason FROM transitions WHERE \"end\" = 'DEAD'") == "runner_lost: silent for 31 s"
    )


def test_a_lost_runner_spends_the_infrastructures_budget(world: World) -> None:
    run = world.train(rollouts={"infrastructure_retries": 0})
    (rollout,), me = world.group(run, 1), world.join()
    world.aboard([rollout], me)

    _lose(world, me)

    assert world.state(rollout) == "FAILED"


def test_the_lost_runner_is_fenced_off(world: World, run: str) -> None:
    (rollout,), me = world.group(run, 1), world.join()
    (key,) = world.aboard([rollout], me)
    _lose(world, me)

    assert world.produce([key]) == set()
    assert world.fail(key) is None
    assert world.state(rollout) == "QUEUED"
