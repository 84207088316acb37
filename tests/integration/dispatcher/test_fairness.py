"""Shares of a fleet, in rows: three tenants under saturation, caps, and schedules that begin anew."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

import pytest
from sqlalchemy import text

from services.dispatcher.loop import Loop
from tests.integration.dispatcher.conftest import SHARES, Share
from tests.integration.store.world import World
from tiltyard.contracts.http import ImageLimits, NodeHealth, PoolLimits
from tiltyard.core.capacity import Capacity
from tiltyard.core.ledger import reconcile
from tiltyard.store import fleet, ledger, limits

WITHIN = 0.05
STEP = 30
"""Seconds that pass between two turns: much longer than a turn takes, which a place is empty for."""


@pytest.fixture
def clock(world: World) -> Callable[[float], None]:
    """Let time pass for everything that a turn looks at."""

    def later(seconds: float) -> None:
        world.sql(
            "UPDATE rollouts SET granted_at = granted_at - make_interval(secs => :s)"
            " WHERE granted_at IS NOT NULL",
            s=seconds,
        )
        world.sql("UPDATE accounts SET updated_at = updated_at - make_interval(secs => :s)", s=seconds)
        world.sql(
            "UPDATE attempts SET granted_at = granted_at - make_interval(secs => :s),"
            " ended_at = ended_at - make_interval(secs => :s)",
            s=seconds,
        )

    return later


def _held(world: World, since: datetime) -> dict[str, float]:
    """Slot-seconds that each tenant held since then, by what its attempts say of their beginning and end; no
    account is asked."""
    with world.work() as session:
        rows = session.execute(
            text(
                "SELECT run.tenant_id, sum(r.slots * extract(epoch FROM"
                " coalesce(a.ended_at, clock_timestamp()) - greatest(a.granted_at, :since)))::float8 AS held"
                " FROM attempts a JOIN rollouts r ON r.id = a.rollout_id JOIN runs run ON run.id = r.run_id"
                " WHERE coalesce(a.ended_at, clock_timestamp()) > :since GROUP BY 1"
            ),
            {"since": since},
        )
        return {row.tenant_id: row.held for row in rows}


def test_three_tenants_share_a_fleet_by_their_weights_however_they_cut_their_work(
    world: World, loop: Loop, clock: Callable[[float], None]
) -> None:
    """The first cuts its work into four runs; the last keeps its rollouts twice as long."""
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    shards = {"a": 4, "b": 1, "c": 1}
    runs = {t: [world.train(tenant=t, published=False) for _ in range(shards[t])] for t in weights}
    for tenant, weight in weights.items():
        world.sql("UPDATE tenants SET weight = :w WHERE id = :t", w=weight, t=tenant)
        for run in runs[tenant]:
            for _ in range(120 // len(runs[tenant])):
                world.group(run, 2)
    me = world.join(slots=8)
    since = world.value("SELECT clock_timestamp()")
    for turn in range(60):
        loop.turn()
        world.claim(me, 99)
        clock(STEP)
        since = world.value("SELECT clock_timestamp()") if turn < 4 else since - timedelta(seconds=STEP)
        _end_those_that_are_old(world, {"a": STEP, "b": STEP, "c": 2 * STEP})

    held = _held(world, since)
    for tenant, weight in weights.items():
        share, due = held[tenant] / sum(held.values()), weight / sum(weights.values())
        SHARES.append(Share(tenant=tenant, weight=weight, due=due, held=share))
    assert all(s.held == pytest.approx(s.due, abs=WITHIN) for s in SHARES[-3:]), SHARES


def _end_those_that_are_old(world: World, seconds: dict[str, int]) -> None:
    """RUNNING rollouts of each tenant end after that many seconds."""
    for tenant, age in seconds.items():
        ids = world.column(
            "SELECT r.id FROM rollouts r JOIN runs run ON run.id = r.run_id WHERE r.state = 'RUNNING' AND"
            " run.tenant_id = :t AND r.granted_at < clock_timestamp() - make_interval(secs => :s)",
            t=tenant,
            s=age,
        )
        world.produce([world.key(i) for i in ids])


def test_a_higher_class_goes_first(world: World, loop: Loop) -> None:
    runs = {p: world.train(priority=p, published=False) for p in ("low", "normal", "high")}
    for run in runs.values():
        world.group(run, 2)
    world.join(slots=3)

    loop.turn()

    granted = Counter(world.column("SELECT run_id FROM rollouts WHERE state = 'GRANTED'"))
    assert granted == {runs["high"]: 2, runs["normal"]: 1}
    assert Counter(world.column("SELECT rank FROM rollouts WHERE state = 'GRANTED'")) == {0: 2, 1: 1}


def test_caps_of_run_tenant_and_pool_hold(world: World, loop: Loop) -> None:
    capped = world.train(rollouts={"max_running": 1}, tenant="a", published=False)
    mate, other = (world.train(tenant=t, published=False) for t in ("a", "b"))
    for run in (capped, mate, other):
        for _ in range(8):
            world.group(run, 1)
    world.sql("UPDATE tenants SET max_running = 3 WHERE id = 'a'")
    world.sql("INSERT INTO pools VALUES ('default', 7)")
    world.join(slots=20)

    for _ in range(3):
        loop.turn()

    held = Counter(world.column("SELECT run_id FROM rollouts WHERE state = 'GRANTED'"))
    assert held == {capped: 1, mate: 2, other: 4}


def test_the_cap_of_an_image_holds_up_no_other(world: World, loop: Loop) -> None:
    """Though all that stands at the head of the queue is of the capped one."""
    run, other = (world.train(published=False) for _ in range(2))
    browser = world.group(run, 40)
    world.sql(
        "UPDATE task_versions SET public = jsonb_set(public, '{environment,image}', '\"browser\"')"
        " WHERE id IN (SELECT version_id FROM rollouts)"
    )
    plain = world.group(other, 2)
    with world.work() as session:
        limits.set_image(session, "browser", ImageLimits(max_running=3))
    me = world.join(slots=20)

    for _ in range(3):
        loop.turn()
    held = Counter(world.column("SELECT run_id FROM rollouts WHERE state = 'GRANTED'"))
    assert held == {run: 3, other: 2}

    world.produce([c.key for c in world.claim(me)])
    loop.turn()
    assert world.states(browser).count("GRANTED") == 3
    assert world.states(plain) == ["PRODUCED"] * 2


def test_headroom_is_kept_free_for_a_burst(world: World, loop: Loop) -> None:
    low, high = (world.train(priority=p, published=False) for p in ("low", "high"))
    world.group(low, 9)
    with world.work() as session:
        limits.set_pool(session, "default", PoolLimits(headroom=3))
    world.join(slots=8)
    loop.turn()
    loop.turn()
    assert world.value("SELECT count(*) FROM rollouts WHERE state = 'GRANTED'") == 5

    burst = world.group(high, 4)
    loop.turn()

    assert world.states(burst) == ["GRANTED"] * 3 + ["QUEUED"]


def test_a_demand_goes_where_it_fits_in_every_component(world: World, loop: Loop) -> None:
    run = world.train(rollouts={"demand": {"slots": 2, "gpu": 1}}, groups_per_step=2, group_size=2)
    world.join("plain", slots=64)
    world.join("gpu", slots=5, gpu=8)

    for _ in range(3):
        loop.turn()

    granted = world.column("SELECT incarnation FROM rollouts WHERE state = 'GRANTED' AND run_id = :r", r=run)
    assert granted == ["gpu"] * 2


def test_a_lonely_rollout_gets_a_runner_that_is_emptied_for_it(world: World, loop: Loop) -> None:
    """Its neighbours would take each slot that gets free, for ever."""
    run, me = world.train(), world.join(slots=2)
    busy = world.group(run, 2)
    keys = world.aboard(busy, me)
    (lonely,), rest = world.group(run, 1), world.group(run, 6)
    world.sql(
        "UPDATE rollouts SET alone = true, queued_at = queued_at - interval '1 minute',"
        " expires_at = expires_at WHERE id = :i",
        i=lonely,
    )
    world.produce(keys[:1])
    loop.turn()
    assert world.states([lonely, *rest]) == ["QUEUED"] * 7

    world.produce(keys[1:])
    loop.turn()

    assert world.states([lonely, *rest]) == ["GRANTED", *["QUEUED"] * 6]


def test_a_drained_node_finishes_what_it_has_and_gets_nothing_more(world: World, loop: Loop) -> None:
    run, me = world.train(groups_per_step=4, group_size=2), world.join(node="n1", slots=2)
    ids = world.group(run, 4)
    keys = world.aboard(ids[:1], me)
    with world.work() as session:
        fleet.drain(session, "n1", draining=True)

    loop.turn()
    assert world.produce(keys)
    loop.turn()
    assert world.states(ids[1:]) == ["QUEUED"] * 3

    with world.work() as session:
        fleet.drain(session, "n1", draining=False)
    loop.turn()
    assert world.states(ids[1:]).count("GRANTED") == 2


def test_a_node_whose_sandboxes_are_ill_gets_nothing_until_they_are_well(world: World, loop: Loop) -> None:
    run, me = world.train(groups_per_step=4, group_size=2), world.join(node="n1", slots=2)
    ids = world.group(run, 4)

    def beat(state: Literal["open", "half_open", "closed"]) -> None:
        with world.work() as session:
            assert fleet.heartbeat(session, me, NodeHealth(state=state, reason="6 of 6 failed")) is not None
        loop.turn()

    beat("open")
    assert world.states(ids) == ["QUEUED"] * 4
    beat("half_open")
    assert world.states(ids).count("GRANTED") == 2


def test_draining_a_node_that_nobody_is_on_says_so(world: World) -> None:
    me = world.join(node="n1")
    with world.work() as session:
        fleet.leave(session, me)

    with pytest.raises(fleet.NoSuchNode, match="no living runner is on node 'n1'"), world.work() as session:
        fleet.drain(session, "n1", draining=True)


def test_a_runner_of_another_version_is_refused_with_the_cure(world: World, loop: Loop) -> None:
    loop.version = "2.0"
    loop.turn()

    cure = "version 1.0, its dispatcher of version 2.0; install the same on both: pip install tiltyard==2.0"
    with pytest.raises(fleet.OtherVersion, match=cure):
        world.join(version="1.0")
    assert world.column("SELECT incarnation FROM runners") == []
    world.join(version="2.0")


def test_schedule_to_start_begins_anew_each_time_a_rollout_is_queued(world: World, loop: Loop) -> None:
    """A rollout that ran for longer than it may wait did not wait."""
    run = world.train()
    (rollout,) = world.group(run, 1, expires=timedelta(seconds=60))
    key = world.aboard([rollout], world.join())[0]
    world.sql(
        "UPDATE rollouts SET expires_at = expires_at - interval '1 hour',"
        " queued_at = queued_at - interval '1 hour'"
    )
    world.fail(key)

    loop.turn()

    assert world.state(rollout) in ("QUEUED", "GRANTED")
    left = "SELECT extract(epoch FROM expires_at - queued_at)::int FROM rollouts WHERE id = :i"
    assert world.value(left, i=rollout) == 60


def test_a_groups_time_in_the_queue_does_not_count_against_its_deadline(world: World, loop: Loop) -> None:
    run = world.train(group_size=2)
    ids = world.group(run, 2, deadline=timedelta(seconds=30))
    world.sql("UPDATE groups SET created_at = created_at - interval '1 hour'")

    loop.turn()
    assert world.states(ids) == ["QUEUED"] * 2

    world.grant(ids[:1], world.join())
    left = "SELECT extract(epoch FROM deadline - clock_timestamp()) FROM groups WHERE id = (SELECT group_id"
    assert 0 < world.value(f"{left} FROM rollouts WHERE id = :i)", i=ids[0]) <= 30


def test_the_ledger_balances_after_grants_by_share(world: World, loop: Loop) -> None:
    run = world.train(groups_per_step=2, group_size=2)
    world.join(slots=3)
    for _ in range(4):
        loop.turn()

    with world.work() as session:
        assert reconcile(ledger.load(session, run)) == []
    assert Capacity(slots=3).fits(Capacity(slots=3))
