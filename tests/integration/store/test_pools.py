"""Pools: what waits and what is held derive from rows, at a cost that ended rollouts do not raise."""

import pytest
from sqlalchemy import text

from tests.integration.store.world import World
from tiltyard.core.accounts import accrued, closed
from tiltyard.core.capacity import Capacity
from tiltyard.core.fairness import Pool, Priority
from tiltyard.core.rollout import State
from tiltyard.store import accounts, fleet, pools
from tiltyard.store.pools import Market


def _market(world: World) -> Market:
    with world.work() as session:
        return pools.market(session)


def _pool(world: World, name: str = "default") -> Pool:
    return {p.name: p for p in _market(world).pools}[name]


def test_queues_are_told_in_order_with_their_class_and_weight(world: World) -> None:
    low = world.train(priority="low", rollouts={"weight": 2.5, "max_running": 7})
    first, second = world.group(low, 2), world.group(low, 2)
    world.train()
    world.join(slots=9)

    told = {r.id: r for r in _pool(world).runs}

    assert [w.rollout for w in told[low].waiting] == [*first, *second]
    assert len({w.group for w in told[low].waiting}) == 2
    assert (told[low].priority, told[low].weight, told[low].cap) == (Priority.LOW, 2.5, 7)
    assert sorted(len(r.waiting) for r in told.values()) == [0, 4]


def test_a_run_near_its_cap_shows_few_of_its_queue(world: World) -> None:
    capped, free = world.train(rollouts={"max_running": 1}), world.train()
    queue = world.group(capped, 40)
    world.group(free, 40)
    me = world.join(slots=200)

    def heads() -> dict[str, int]:
        return {r.id: len(r.waiting) for r in _pool(world).runs}

    assert heads() == {capped: 32, free: 40}
    world.aboard(queue[:1], me)
    assert heads() == {capped: 1, free: 40}


def test_only_rollouts_of_running_runs_wait_for_grants(world: World) -> None:
    run = world.train()
    world.group(run)
    world.sql("UPDATE runs SET state = 'COMPLETED'")

    assert _market(world).keys == {}


def test_what_is_held_is_what_is_aboard(world: World) -> None:
    run, me = world.train(), world.join(slots=8, cpu=4, memory_mb=1_024, gpu=2)
    ids = world.group(run, 4, demand=Capacity(slots=2, cpu=0.5, gpu=1))
    world.aboard(ids[:2], me)
    world.grant(ids[2:3], me)

    pool = _pool(world)
    (runner,), (tenant,), (told,) = pool.runners, pool.tenants.values(), pool.runs
    held = Capacity(slots=6, cpu=1.5, gpu=3)
    assert (runner.used, tenant.usage, told.usage) == (held, held, held)
    assert (runner.aboard, tenant.aboard, told.aboard) == (3, 3, 3)
    assert runner.capacity == pool.capacity == Capacity(slots=8, cpu=4, memory_mb=1_024, gpu=2)
    assert runner.room == Capacity(slots=2, cpu=2.5, memory_mb=1_024, gpu=-1)


@pytest.mark.parametrize("end", [State.FAILED, State.DEAD, State.CANCELLED, State.PRODUCED, State.TRAINED])
def test_what_ended_in_whatever_way_holds_nothing(world: World, end: State) -> None:
    """A counter would have to be right in each of these ways; a sum over rows is."""
    (rollout,) = world.group(world.train(), 1)
    world.walk(rollout, end)

    assert all(t.aboard == 0 and t.usage == Capacity() for t in _pool(world).tenants.values())
    assert all(r.aboard == 0 for r in _pool(world).runners)


def test_pools_are_apart(world: World) -> None:
    world.join("gpu-1", pool="gpu", slots=2)
    world.join("cpu-1", slots=4)
    run = world.train(rollouts={"pool": "gpu"})
    world.group(run)

    assert [r.id for r in _pool(world, "gpu").runs] == [run]
    assert _pool(world).runs == ()
    assert _pool(world).capacity == Capacity(slots=4)


def test_a_market_is_found_by_partial_indexes_alone(world: World) -> None:
    """So that a grant costs the same beside ten thousand ended rollouts and ten million."""
    run = world.train()
    ids = world.group(run, 2)
    world.aboard(world.group(run, 2), world.join())
    world.sql(
        "INSERT INTO rollouts (id, run_id, group_id, version_id, member, state, expires_at)"
        " SELECT 'ended-' || n, run_id, group_id, version_id, 10 + n, 'FILTERED', expires_at"
        " FROM rollouts, generate_series(1, 20000) n WHERE id = :id",
        id=ids[0],
    )
    world.sql("ANALYZE rollouts")
    plans = {}
    with world.work() as session:
        for name, query in {"waiting": pools._WAITING, "held": pools._HELD, "alive": fleet._ALIVE}.items():
            values = {"each": 32, "few": 32, "most": 32, "full": [], "runs": [], "aboard": []}
            rows = session.execute(text(f"EXPLAIN {query}"), values).scalars()
            plans[name] = "\n".join(rows)

    # The planner takes either index: both hold the run's rows alone.
    assert any(index in plans["waiting"] for index in ("ix_rollouts_queued", "ix_rollouts_run_id_state"))
    assert all("Seq Scan on rollouts" not in plan for plan in plans.values()), plans
    assert "ix_rollouts_aboard" in plans["held"]


def test_accounts_are_kept_while_they_say_something(world: World) -> None:
    run = world.train()
    world.group(run)
    world.join()
    market = _market(world)
    (pool,) = market.pools
    with world.work() as session:
        accounts.save(session, closed(pool, ()), (), at=market.at)
    assert world.value("SELECT count(*) FROM accounts") == 2
    assert market.seconds("default") == 0.0
    assert 0.0 <= _market(world).seconds("default") <= 5.0

    world.sql("UPDATE rollouts SET state = 'CANCELLED'")
    market = _market(world)
    with world.work() as session:
        accounts.save(session, closed(accrued(market.pools[0], seconds=1), ()), (), at=market.at)
    assert world.value("SELECT count(*) FROM accounts") == 0


def test_deficits_come_back_as_they_were_written(world: World) -> None:
    run = world.train()
    world.group(run)
    world.sql(
        "INSERT INTO accounts (pool, tenant_id, run_id, deficit) VALUES ('default', 'default', '', -1.5),"
        " ('default', 'default', :run, 2.5)",
        run=run,
    )

    pool = _pool(world)

    assert [t.deficit for t in pool.tenants.values()] == [-1.5]
    assert [r.deficit for r in pool.runs] == [2.5]
