"""The reaper: what ran out of time is taken back, by the database's time and under a new fence."""

from collections.abc import Callable

import pytest

from services.dispatcher.loop import LOOP, Loop
from services.dispatcher.reap import reap
from tests.integration.dispatcher.conftest import Recorder
from tests.integration.store.world import World
from tiltyard.core.ledger import reconcile
from tiltyard.core.rollout import Actor, State
from tiltyard.store import leadership, ledger
from tiltyard.store.leadership import Leader, NotLeading
from tiltyard.store.moves import move

Turn = Callable[[], int]


def _lead(world: World, holder: str = "d1") -> Leader:
    with world.work() as session:
        leader = leadership.lead(session, LOOP, holder)
    assert leader is not None
    return leader


def _trusting(world: World, *, since: str = "1 hour") -> Leader:
    _lead(world)
    world.sql("UPDATE leaderships SET trusted_since = clock_timestamp() - CAST(:i AS interval)", i=since)
    return _lead(world)


def _silence(world: World, incarnation: str, seconds: int) -> None:
    world.sql(
        "UPDATE runners SET last_heartbeat = clock_timestamp() - make_interval(secs => :s)"
        " WHERE incarnation = :i",
        s=seconds,
        i=incarnation,
    )


@pytest.fixture
def run(world: World) -> str:
    return world.train()


@pytest.fixture
def turn(world: World) -> Turn:
    return lambda: reap(world.work, _trusting(world))


def test_nothing_late_is_nothing_to_do(world: World, run: str, turn: Turn) -> None:
    world.aboard(world.group(run, 2), world.join())
    world.group(run, 2)

    assert turn() == 0


def test_a_silent_runner_is_lost_with_everything_aboard(world: World, run: str, turn: Turn) -> None:
    silent, heard = world.join(), world.join()
    mine, theirs = world.group(run, 2)
    world.aboard([mine], silent)
    world.aboard([theirs], heard)
    _silence(world, silent, 31)
    _silence(world, heard, 29)

    assert turn() == 2

    assert world.states([mine, theirs]) == ["QUEUED", "RUNNING"]
    assert world.column("SELECT incarnation FROM runners WHERE alive") == [heard]
    assert world.row(mine).infrastructure_failures == 1


@pytest.mark.parametrize(("trusted", "lost"), [("59 seconds", False), ("61 seconds", True)])
def test_silence_counts_only_after_a_minute_of_trust(
    world: World, run: str, trusted: str, lost: bool
) -> None:
    me = world.join()
    world.aboard(world.group(run, 1), me)
    _silence(world, me, 3_600)

    reap(world.work, _trusting(world, since=trusted))

    assert world.column("SELECT incarnation FROM runners WHERE alive") == ([] if lost else [me])


def test_the_turn_that_doubts_the_time_judges_nobody(world: World, run: str, recorder: Recorder) -> None:
    """The dispatcher kept its lease while the database was away for some seconds."""
    me = world.join()
    world.aboard(world.group(run, 1), me)
    _trusting(world)
    _silence(world, me, 3_600)

    Loop(work=world.work, publisher=recorder.publisher, holder="d1", doubts_time=True).turn()

    assert world.column("SELECT incarnation FROM runners WHERE alive") == [me]


def test_a_dispatcher_that_trusts_the_time_judges_at_once(world: World, run: str, recorder: Recorder) -> None:
    me = world.join()
    world.aboard(world.group(run, 1), me)
    _trusting(world)
    _silence(world, me, 3_600)

    Loop(work=world.work, publisher=recorder.publisher, holder="d1", doubts_time=False).turn()

    assert world.column("SELECT incarnation FROM runners WHERE alive") == []


@pytest.mark.parametrize(("age", "state"), [(59, "GRANTED"), (61, "QUEUED")])
def test_a_grant_that_nobody_claims_goes_back_free_of_charge(
    world: World, run: str, turn: Turn, age: int, state: str
) -> None:
    (rollout,), me = world.group(run, 1), world.join()
    (granted,) = world.grant([rollout], me)
    world.sql("UPDATE rollouts SET granted_at = clock_timestamp() - make_interval(secs => :s)", s=age)

    turn()

    row = world.row(rollout)
    assert row.state == state
    assert (row.infrastructure_failures, row.losses) == (0, 0)
    assert (row.fence > granted.fence) == (state == "QUEUED")
    assert (world.claim(me) == []) == (state == "QUEUED")


@pytest.mark.parametrize(("asked", "end"), [(State.CANCELLING, "CANCELLED"), (State.PREEMPTING, "QUEUED")])
@pytest.mark.parametrize(("age", "taken"), [(59, False), (61, True)])
def test_what_is_not_stopped_within_its_grace_is_taken(
    world: World, run: str, turn: Turn, asked: State, end: str, age: int, taken: bool
) -> None:
    (rollout,) = world.group(run, 1)
    (key,) = world.aboard([rollout], world.join())
    with world.work() as session:
        move(session, [key], asked, actor=Actor.DISPATCHER)
    world.sql("UPDATE rollouts SET updated_at = clock_timestamp() - make_interval(secs => :s)", s=age)

    turn()

    row = world.row(rollout)
    assert row.state == (end if taken else asked)
    assert row.infrastructure_failures == 0
    assert (row.fence > key.fence) == taken
    assert world.value("SELECT count(*) FROM attempts WHERE ended_at IS NULL") == (0 if taken else 1)


def test_a_rollout_that_waited_too_long_for_a_grant_expires(world: World, run: str, turn: Turn) -> None:
    waiting, granted = world.group(run, 2)
    world.grant([granted], world.join())
    world.sql("UPDATE rollouts SET expires_at = clock_timestamp() - interval '1 second'")

    assert turn() == 1

    assert world.states([waiting, granted]) == ["EXPIRED", "GRANTED"]


def test_a_run_past_its_deadline_fails_with_all_it_had(world: World, run: str, turn: Turn) -> None:
    ids = world.group(run, 2)
    world.aboard(ids[:1], world.join())
    world.sql("UPDATE runs SET deadline = clock_timestamp() - interval '1 second' WHERE id = :r", r=run)

    assert turn() == 1
    assert turn() == 0

    assert world.states(ids) == ["CANCELLING", "CANCELLED"]
    ended = world.value("SELECT state || ': ' || reason FROM runs WHERE id = :r", r=run)
    assert ended == "FAILED: its deadline passed"


def test_a_deposed_leader_reaps_nothing(world: World, run: str) -> None:
    first = _trusting(world)
    me = world.join()
    world.aboard(world.group(run, 1), me)
    _silence(world, me, 3_600)
    world.sql("UPDATE leaderships SET lease_until = clock_timestamp() - interval '1 second'")
    _lead(world, "d2")

    with pytest.raises(NotLeading):
        reap(world.work, first)
    assert world.column("SELECT incarnation FROM runners WHERE alive") == [me]


def test_the_ledger_balances_after_everything_was_reaped(world: World, run: str, turn: Turn) -> None:
    ids, lost, heard = world.group(run, 5), world.join(), world.join()
    world.aboard(ids[:2], lost)
    world.grant(ids[2:3], heard)
    (asked,) = world.aboard(ids[3:4], world.join())
    with world.work() as session:
        move(session, [asked], State.CANCELLING, actor=Actor.REGISTRY)
    _silence(world, lost, 3_600)
    world.sql(
        "UPDATE rollouts SET granted_at = granted_at - interval '1 hour', updated_at = updated_at -"
        " interval '1 hour', expires_at = clock_timestamp()"
    )

    turn()
    assert set(world.states(ids)) == {"QUEUED", "EXPIRED", "CANCELLED"}
    world.sql("UPDATE rollouts SET expires_at = clock_timestamp()")
    turn()

    assert set(world.states(ids)) == {"EXPIRED", "CANCELLED"}
    with world.work() as session:
        assert reconcile(ledger.load(session, run)) == []
