"""Preemption by the leader, in rows: who arrives is served, who yields completes later, no circle."""

from collections import Counter
from datetime import timedelta

import pytest

from services.dispatcher.loop import LOOP, Loop
from services.dispatcher.preempt import take_back
from services.dispatcher.reap import STOP_GRACE, reap
from tests.integration.dispatcher.conftest import Recorder
from tests.integration.store.world import World
from tiltyard.core.capacity import Capacity
from tiltyard.core.fairness import BOOST_AFTER
from tiltyard.core.ledger import reconcile
from tiltyard.core.rollout import Actor
from tiltyard.store import attempts, fleet, leadership, ledger, rollouts
from tiltyard.store.leadership import Leader, NotLeading
from tiltyard.store.moves import Key


def _lead(world: World, holder: str = "d1") -> Leader:
    with world.work() as session:
        leader = leadership.lead(session, LOOP, holder)
    assert leader is not None
    return leader


def _pass(world: World, seconds: float) -> None:
    """Let time pass for everything that preemption looks at."""
    by = timedelta(seconds=seconds)
    world.sql(
        "UPDATE rollouts SET granted_at = granted_at - :by, queued_at = queued_at - :by,"
        " expires_at = expires_at - :by, updated_at = updated_at - :by",
        by=by,
    )
    world.sql("UPDATE transitions SET at = at - :by", by=by)


def _yield(world: World, incarnation: str) -> list[Key]:
    """What a runner does with the orders of its heartbeat."""
    with world.work() as session:
        orders = fleet.heartbeat(session, incarnation)
        assert orders is not None
        attempts.stopped(session, [*orders.stop, *orders.yields])
    return [*orders.stop, *orders.yields]


def _turn(world: World, loop: Loop) -> int:
    """A turn that looks back, whatever the clock says; how many were told to yield."""
    told = "SELECT count(*) FROM transitions WHERE \"end\" = 'PREEMPTING'"
    before = world.value(told)
    loop.turn()
    take_back(world.work, _lead(world))
    return world.value(told) - before


def _aboard(world: World) -> Counter[str]:
    return Counter(
        world.column(
            "SELECT run_id FROM rollouts WHERE state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')"
        )
    )


def _balanced(world: World, run: str) -> bool:
    with world.work() as session:
        return reconcile(ledger.load(session, run)) == []


@pytest.fixture
def low(world: World) -> str:
    return world.train(priority="low", published=False)


@pytest.fixture
def high(world: World) -> str:
    return world.train(priority="high", published=False)


def test_a_high_run_gets_the_fleet_that_a_low_one_fills_and_the_low_one_completes_later(
    world: World, loop: Loop, low: str, high: str
) -> None:
    me = world.join(slots=4)
    first = world.group(low, 4)
    loop.turn()
    world.claim(me)
    _pass(world, 10)
    second = world.group(high, 4)
    turns = 0
    while _aboard(world) != {high: 4}:
        _pass(world, 5)
        _turn(world, loop)
        _yield(world, me)
        world.claim(me)
        turns += 1
        assert turns < 10, _aboard(world)

    assert world.states(first) == ["QUEUED"] * 4
    world.produce([world.key(i) for i in second])
    loop.turn()
    world.claim(me)
    assert world.produce([world.key(i) for i in first]) == set(first)
    assert world.column("SELECT DISTINCT preemptions FROM rollouts WHERE run_id = :r", r=low) == [1]
    assert world.column("SELECT DISTINCT infrastructure_failures FROM rollouts") == [0]
    assert _balanced(world, low)
    assert _balanced(world, high)


def test_the_place_that_is_freed_is_for_the_higher_class_alone(
    world: World, loop: Loop, low: str, high: str
) -> None:
    """A victim yields at once while others of its demand still have to: nobody below takes the gap."""
    me = world.join(slots=2)
    world.group(low, 6)
    loop.turn()
    world.claim(me)
    _pass(world, 10)
    (wanted,) = world.group(high, 1, demand=Capacity(slots=2))
    _pass(world, 2)
    assert _turn(world, loop) == 2
    with world.work() as session:
        orders = fleet.heartbeat(session, me)
        assert orders is not None
        attempts.stopped(session, orders.yields[:1])

    loop.turn()
    assert _aboard(world) == {low: 1}
    _yield(world, me)
    loop.turn()

    assert world.state(wanted) == "GRANTED"
    assert _aboard(world) == {high: 1}


def test_room_that_comes_by_itself_costs_nobody_anything(
    world: World, loop: Loop, low: str, high: str
) -> None:
    me = world.join(slots=2)
    world.group(low, 4)
    loop.turn()
    world.claim(me)
    _pass(world, 10)
    world.group(high, 1)
    assert _turn(world, loop) == 0, "it has not waited"
    _pass(world, 2)
    assert _turn(world, loop) == 1
    assert _turn(world, loop) == 0, "one place is being freed, and one is asked for"
    _yield(world, me)
    _pass(world, 2)
    assert _turn(world, loop) == 0

    assert _aboard(world) == {low: 1, high: 1}


@pytest.mark.parametrize("priority", ["low", "normal"])
def test_nobody_takes_from_his_own_class_or_above_it(world: World, loop: Loop, priority: str) -> None:
    """However long it has waited: two hours have raised it to the top by then."""
    me, holder = world.join(slots=2), world.train(priority="normal", published=False)
    world.group(holder, 2)
    loop.turn()
    world.claim(me)
    world.group(world.train(priority=priority, tenant="b", published=False), 2)
    _pass(world, 7_200)
    world.sql("UPDATE rollouts SET expires_at = clock_timestamp() + interval '1 hour'")

    assert _turn(world, loop) == 0
    assert _aboard(world) == {holder: 2}


def test_a_tenant_at_its_cap_takes_from_its_own_lower_run(
    world: World, loop: Loop, low: str, high: str
) -> None:
    """Though the fleet has room: the cap is what keeps it waiting."""
    me, other = world.join(slots=9), world.train(priority="low", tenant="b", published=False)
    world.sql("UPDATE tenants SET max_running = 2 WHERE id = 'default'")
    for run in (low, other):
        world.group(run, 3)
    loop.turn()
    world.claim(me)
    assert _aboard(world) == {low: 2, other: 3}
    _pass(world, 10)
    world.group(high, 1)
    _pass(world, 2)

    assert _turn(world, loop) == 1
    _yield(world, me)
    loop.turn()

    assert _aboard(world) == {low: 1, high: 1, other: 3}


def test_what_does_not_yield_in_its_grace_is_taken_free_of_charge(
    world: World, loop: Loop, low: str, high: str
) -> None:
    """And its runner hears of it as long as it may be silent."""
    me = world.join(slots=1)
    (victim,) = world.group(low, 1)
    loop.turn()
    (claim,) = world.claim(me)
    _pass(world, 10)
    world.group(high, 1)
    _pass(world, 2)
    assert _turn(world, loop) == 1
    _pass(world, STOP_GRACE.total_seconds() + 1)

    reap(world.work, _lead(world))
    loop.turn()

    row = world.row(victim)
    assert (row.state, row.infrastructure_failures) == ("QUEUED", 0)
    assert row.fence > claim.fence
    assert _aboard(world) == {high: 1}
    assert world.column("SELECT outcome FROM attempts WHERE rollout_id = :i", i=victim) == ["preempted"]
    with world.work() as session:
        orders = fleet.heartbeat(session, me)
    assert orders is not None
    assert orders.taken == (claim.key,)


def test_what_yielded_often_goes_first_and_yields_no_more(
    world: World, loop: Loop, low: str, high: str
) -> None:
    """A pool of one slot takes one place a minute."""
    me = world.join(slots=1)
    (victim, other) = world.group(low, 2)
    for _ in range(BOOST_AFTER):
        loop.turn()
        assert world.state(victim) == "GRANTED"
        world.claim(me)
        _pass(world, 70)
        (guest,) = world.group(high, 1)
        _pass(world, 2)
        assert _turn(world, loop) == 1
        _yield(world, me)
        loop.turn()
        world.claim(me)
        world.produce([world.key(guest)])
    loop.turn()
    world.claim(me)
    _pass(world, 70)
    world.group(high, 1)
    _pass(world, 2)

    assert _turn(world, loop) == 0
    assert world.states([victim, other]) == ["RUNNING", "QUEUED"]
    assert world.value("SELECT rank FROM rollouts WHERE id = :i", i=victim) == 1


def test_contention_goes_round_in_no_circle(world: World, loop: Loop) -> None:
    """Three classes fight for four slots for as long as ten minutes of rows: nobody yields more than twice,
    nobody of the highest class ever does, and everything ends."""
    me = world.join(slots=4)
    runs = {p: world.train(priority=p, tenant=p, published=False) for p in ("low", "normal", "high")}
    planned: list[str] = []
    for second in range(0, 600, 5):
        if second < 420 and second % 60 == 0:
            planned += world.group(runs["low"], 4)
        if second < 420 and second % 90 == 30:
            planned += world.group(runs["normal"], 2)
        if second < 420 and second % 120 == 45:
            planned += world.group(runs["high"], 4)
        _pass(world, 5)
        _turn(world, loop)
        _yield(world, me)
        world.claim(me)
        old = "SELECT id FROM rollouts WHERE state = 'RUNNING' AND granted_at < clock_timestamp() - :age"
        world.produce([world.key(i) for i in world.column(old, age=timedelta(seconds=14))])
    ended = set(world.column("SELECT id FROM rollouts WHERE state = 'PRODUCED'"))

    assert ended == set(planned)
    yielded = Counter(world.column("SELECT rollout_id FROM transitions WHERE \"end\" = 'PREEMPTING'"))
    assert yielded, "nobody ever contended"
    assert max(yielded.values()) <= BOOST_AFTER
    highest = set(world.column("SELECT id FROM rollouts WHERE run_id = :r", r=runs["high"]))
    assert not highest & set(yielded)
    assert all(_balanced(world, run) for run in runs.values())


def test_a_deposed_leader_takes_nothing_back(world: World, low: str) -> None:
    first = _lead(world)
    world.sql("UPDATE leaderships SET lease_until = clock_timestamp() - interval '1 second'")
    _lead(world, "d2")

    with pytest.raises(NotLeading):
        take_back(world.work, first)


def test_preemptions_are_a_metric(world: World, loop: Loop, recorder: Recorder, low: str, high: str) -> None:
    me = world.join(slots=1)
    world.group(low, 1)
    loop.turn()
    world.claim(me)
    world.group(high, 1)
    _pass(world, 10)

    Loop(work=world.work, publisher=recorder.publisher, holder="d1", metrics=loop.metrics).turn()

    assert b"tiltyard_preemptions_total 1.0" in loop.metrics.exposition()


def test_a_run_that_is_cancelled_while_others_yield_to_it_frees_what_was_kept(
    world: World, loop: Loop, low: str, high: str
) -> None:
    me = world.join(slots=2)
    world.group(low, 4)
    loop.turn()
    world.claim(me)
    _pass(world, 10)
    (wanted,) = world.group(high, 1, demand=Capacity(slots=2))
    _pass(world, 2)
    assert _turn(world, loop) == 2
    with world.work() as session:
        rollouts.cancel(session, [world.key(wanted)], actor=Actor.REGISTRY, reason="enough")
    world.sql("UPDATE runs SET state = 'CANCELLED' WHERE id = :r", r=high)
    with world.work() as session:
        orders = fleet.heartbeat(session, me)
        assert orders is not None
        attempts.stopped(session, orders.yields[:1])

    loop.turn()

    assert _aboard(world) == {low: 2}
