"""Preemptions in rows: who is aboard, the order with its second look, and what yielding costs: nothing."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import text

from tests.integration.store.world import World
from tiltyard.core.capacity import Capacity
from tiltyard.core.fairness import BOOST_AFTER
from tiltyard.core.fleet import LOWEST
from tiltyard.core.ledger import reconcile
from tiltyard.core.preemption import LEAST_RUN, WAIT_FIRST, Crew, Preemption
from tiltyard.core.rollout import Actor, State
from tiltyard.store import attempts, fleet, ledger, preemptions, rollouts
from tiltyard.store.database import now
from tiltyard.store.moves import Key, move


@pytest.fixture
def low(world: World) -> str:
    return world.train(priority="low")


@pytest.fixture
def high(world: World) -> str:
    return world.train(priority="high")


def _older(world: World, by: timedelta = timedelta(minutes=1)) -> None:
    """What waits or runs has done so for a while."""
    world.sql("UPDATE rollouts SET granted_at = granted_at - :by, queued_at = queued_at - :by", by=by)


def _crew(world: World) -> Crew:
    with world.work() as session:
        return preemptions.crew(session, "default")


def _order(world: World, run: str, *victims: str, incarnation: str = "") -> int:
    with world.work() as session:
        one = Preemption(victims=victims, incarnation=incarnation, run=run)
        return preemptions.order(session, [one], at=now(session))


def _thinkable(world: World) -> bool:
    with world.work() as session:
        return preemptions.thinkable(session)


def _yields_to(world: World) -> int:
    with world.work() as session:
        (runner,) = fleet.alive(session)
    return runner.yields_to


def _deadline(world: World, rollout: str) -> datetime | None:
    query = "SELECT g.deadline FROM groups g JOIN rollouts r ON r.group_id = g.id WHERE r.id = :id"
    return world.value(query, id=rollout)


def test_a_crew_is_told_with_its_classes_and_what_is_about_to_leave(
    world: World, low: str, high: str
) -> None:
    me = world.join(slots=20)
    normal, aged = world.train(), world.train(priority="low")
    plain, _, yielding, stopping, granted = world.group(low, 5, demand=Capacity(slots=2))
    keys = {k.rollout_id: k for k in world.aboard([plain, yielding, stopping], me)}
    (lifted,) = world.aboard(world.group(aged, 1), me)
    world.sql("UPDATE rollouts SET rank = 1, preemptions = 1 WHERE id = :id", id=lifted.rollout_id)
    (middle,) = world.aboard(world.group(normal, 1), me)
    world.sql("UPDATE rollouts SET rank = 2 WHERE id = :id", id=middle.rollout_id)
    world.grant([granted], me)
    with world.work() as session:
        move(session, [keys[yielding]], State.PREEMPTING, actor=Actor.DISPATCHER)
        move(session, [keys[stopping]], State.CANCELLING, actor=Actor.REGISTRY)

    crew = _crew(world)

    told = {a.rollout: a for a in crew.running}
    assert set(told) == {plain, lifted.rollout_id, middle.rollout_id}
    assert (told[plain].rank, told[lifted.rollout_id].rank, told[middle.rollout_id].rank) == (2, 1, 1)
    assert told[lifted.rollout_id].preemptions == 1
    assert told[plain].demand == Capacity(slots=2)
    assert [a.rollout for a in crew.yielding] == [yielding]
    assert [a.rollout for a in crew.stopping] == [stopping]
    assert crew.told == 2


def test_the_crew_of_another_pool_is_not_told(world: World) -> None:
    run = world.train(rollouts={"pool": "default"})
    world.aboard(world.group(run, 1), world.join())

    with world.work() as session:
        assert preemptions.crew(session, "gpu") == Crew(running=())


def test_what_was_told_to_yield_more_than_a_minute_ago_is_spent_no_more(
    world: World, low: str, high: str
) -> None:
    ids = world.group(low, 2)
    world.aboard(ids, world.join())
    _older(world)
    assert _order(world, high, *ids) == 2
    assert _crew(world).told == 2

    world.sql("UPDATE transitions SET at = at - interval '61 seconds'")
    assert _crew(world).told == 0


def test_an_order_keeps_the_place_counts_itself_and_stops_the_groups_clock(
    world: World, low: str, high: str
) -> None:
    ids = world.group(low, 2)
    (key,) = world.aboard(ids[:1], world.join())
    _older(world)
    assert _deadline(world, key.rollout_id) is not None
    assert _yields_to(world) == LOWEST

    assert _order(world, high, key.rollout_id) == 1

    assert world.key(key.rollout_id) == key, "its runner has to be told under the fence that it knows"
    assert world.state(key.rollout_id) == "PREEMPTING"
    assert world.value("SELECT preemptions FROM rollouts WHERE id = :id", id=key.rollout_id) == 1
    assert _deadline(world, key.rollout_id) is None
    assert _yields_to(world) == 0
    reason = "SELECT reason FROM transitions WHERE \"end\" = 'PREEMPTING'"
    assert world.value(reason) == f"yields to run {high}"
    world.sql("UPDATE runs SET state = 'CANCELLED' WHERE id = :id", id=high)
    assert _yields_to(world) == LOWEST, "nobody is left to keep the place for"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rollouts SET state = 'CANCELLING' WHERE id = :victim",
        "UPDATE rollouts SET preemptions = 2 WHERE id = :victim",
        "UPDATE rollouts SET rank = 0 WHERE id = :victim",
        "UPDATE rollouts SET granted_at = clock_timestamp() WHERE id = :victim",
        "UPDATE runs SET config = jsonb_set(config, '{priority}', '\"high\"') WHERE id = :low",
        "UPDATE runs SET config = jsonb_set(config, '{priority}', '\"low\"') WHERE id = :high",
        "UPDATE runs SET state = 'COMPLETED' WHERE id = :high",
    ],
)
def test_an_order_is_given_for_all_victims_of_a_demand_or_for_none(
    world: World, low: str, high: str, change: str
) -> None:
    """Something changed since they were chosen: the rows are looked at again where they are locked."""
    ids = world.group(low, 2)
    world.aboard(ids, world.join())
    _older(world)
    world.sql(f"{change} AND :victim <> '' AND :low <> '' AND :high <> ''", victim=ids[0], low=low, high=high)

    assert _order(world, high, *ids) == 0

    assert world.state(ids[1]) == "RUNNING"
    assert world.value("SELECT preemptions FROM rollouts WHERE id = :id", id=ids[1]) == 0


def test_yielding_pays_no_retry_and_starts_the_wait_anew(world: World, low: str, high: str) -> None:
    (rollout,) = world.group(low, 1)
    for count in range(BOOST_AFTER):
        (key,) = world.aboard([rollout], world.join())
        _older(world)
        assert _order(world, high, rollout) == 1
        with world.work() as session:
            attempts.stopped(session, [key])
        row = world.row(rollout)
        assert (row.state, row.infrastructure_failures, row.losses) == ("QUEUED", 0, 0)
        assert world.value("SELECT preemptions FROM rollouts") == count + 1
        assert world.value("SELECT yields_to FROM rollouts") is None
    assert world.column("SELECT DISTINCT outcome FROM attempts") == ["preempted"]

    world.aboard([rollout], world.join())
    _older(world)
    assert _order(world, high, rollout) == 0, "it has yielded often enough"
    with world.work() as session:
        assert reconcile(ledger.load(session, low)) == []


def test_an_attempt_that_ends_within_its_grace_keeps_its_work(world: World, low: str, high: str) -> None:
    (key,) = world.aboard(world.group(low, 1), world.join())
    _older(world)
    _order(world, high, key.rollout_id)

    assert world.produce([key]) == {key.rollout_id}

    assert world.state(key.rollout_id) == "PRODUCED"
    assert world.value("SELECT yields_to FROM rollouts WHERE id = :id", id=key.rollout_id) is None
    assert _yields_to(world) == LOWEST
    assert world.column("SELECT state FROM gradings") == ["QUEUED"]


def test_a_failure_within_the_grace_is_charged_to_nobody(world: World, low: str, high: str) -> None:
    (key,) = world.aboard(world.group(low, 1), world.join())
    _older(world)
    _order(world, high, key.rollout_id)

    assert world.fail(key) is None
    with world.work() as session:
        attempts.stopped(session, [key])

    row = world.row(key.rollout_id)
    assert (row.state, row.infrastructure_failures) == ("QUEUED", 0)


def test_a_late_end_of_what_was_taken_changes_nothing(world: World, low: str, high: str) -> None:
    (key,) = world.aboard(world.group(low, 1), world.join())
    _older(world)
    _order(world, high, key.rollout_id)
    with world.work() as session:
        move(session, [key], State.QUEUED, actor=Actor.DISPATCHER, only_from=[State.PREEMPTING])

    assert world.produce([key]) == set()
    assert world.state(key.rollout_id) == "QUEUED"
    assert world.row(key.rollout_id).fence > key.fence


def test_a_run_that_is_cancelled_while_it_yields_ends(world: World, low: str, high: str) -> None:
    (key,) = world.aboard(world.group(low, 1), world.join())
    _older(world)
    _order(world, high, key.rollout_id)

    with world.work() as session:
        rollouts.cancel(session, [key], actor=Actor.REGISTRY, reason="enough")

    assert world.state(key.rollout_id) == "CANCELLED"
    assert world.column("SELECT outcome FROM attempts") == ["cancelled"]


def test_most_turns_need_not_think_of_it(world: World, low: str, high: str) -> None:
    assert not _thinkable(world)
    world.aboard(world.group(low, 1), world.join())
    world.group(high, 1)
    _older(world)
    assert _thinkable(world)

    for change in (
        "UPDATE rollouts SET granted_at = clock_timestamp() - CAST(:least AS interval) + interval '2 s'",
        "UPDATE rollouts SET queued_at = clock_timestamp() - CAST(:first AS interval) + interval '0.9 s'",
        "UPDATE rollouts SET not_before = clock_timestamp() + interval '1 h'",
        "UPDATE runs SET config = jsonb_set(config, '{priority}', '\"normal\"')",
        "UPDATE runs SET state = 'COMPLETED'",
    ):
        with world.work() as session:
            values = {"least": LEAST_RUN, "first": WAIT_FIRST}
            session.execute(text(change), {k: v for k, v in values.items() if f":{k}" in change})
            assert not preemptions.thinkable(session), change
            session.rollback()


def test_looking_for_something_to_think_of_reads_no_ended_rollouts(world: World, low: str, high: str) -> None:
    (ended,) = world.group(low, 1)
    world.sql(
        "INSERT INTO rollouts (id, run_id, group_id, version_id, member, state, expires_at)"
        " SELECT 'ended-' || n, run_id, group_id, version_id, 10 + n, 'FILTERED', expires_at"
        " FROM rollouts, generate_series(1, 20000) n WHERE id = :id",
        id=ended,
    )
    world.sql("ANALYZE rollouts")
    values = {"patience": WAIT_FIRST, "least": LEAST_RUN, "pool": "default", "lately": WAIT_FIRST}
    with world.work() as session:
        for query in (preemptions._THINKABLE, preemptions._CREW, preemptions._TOLD):
            used = {k: v for k, v in values.items() if f":{k}" in query}
            plan = "\n".join(session.execute(text(f"EXPLAIN {query}"), used).scalars())
            assert "Seq Scan on rollouts" not in plan, plan


def test_a_lost_runner_gives_back_what_was_to_yield_free_of_charge(world: World, low: str, high: str) -> None:
    me = world.join()
    (key,) = world.aboard(world.group(low, 1), me)
    _older(world)
    _order(world, high, key.rollout_id)

    with world.work() as session:
        fleet.lose(session, me, reason="it fell silent")

    row = world.row(key.rollout_id)
    assert (row.state, row.infrastructure_failures, row.losses) == ("QUEUED", 0, 0)
    assert Key(rollout_id=key.rollout_id, fence=row.fence) != key
