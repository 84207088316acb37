"""Attempts: claimed once, ended once, charged to the right budget."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.integration.store.world import TRACE, World
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.core.rollout import Actor, State
from tiltyard.store import attempts, pools
from tiltyard.store.moves import Key, move

INVALID = [o for o in Outcome if not ruling(o).valid]


@pytest.fixture
def run(world: World) -> str:
    return world.train(rollouts={"infrastructure_retries": 2})


def test_a_claim_holds_everything_that_a_runner_needs(world: World) -> None:
    run = world.train(seed=3, sampling={"temperature": 0.5})
    ids, me = world.group(run, 2), world.join()
    world.grant(ids, me)

    claims = world.claim(me)

    assert {c.rollout_id for c in claims} == set(ids)
    first = claims[0]
    assert first.key == world.key(first.rollout_id)
    assert (first.run_id, first.fence, first.traceparent) == (run, 1, TRACE)
    assert first.model == f"{run}@latest"
    assert first.sampling == {"temperature": 0.5, "top_p": 1.0}
    assert first.public["instruction"] == "Say yes."
    assert not {"verifier", "oracle"} & set(first.public)
    assert len({c.seed for c in claims}) == 2


def test_every_member_of_every_group_draws_another_seed(world: World, run: str) -> None:
    me = world.join(slots=20)
    ids = [i for _ in range(4) for i in world.group(run, 5)]
    world.grant(ids, me)

    assert len({c.seed for c in world.claim(me)}) == 20


def test_an_evaluation_is_claimed_with_the_version_that_it_evaluates(world: World) -> None:
    run = world.evaluation()
    world.sql("UPDATE runs SET state = 'RUNNING' WHERE id = :run", run=run)
    ids, me = world.group(run, 1), world.join()
    world.grant(ids, me)
    policy = world.value("SELECT policy_run_id FROM runs WHERE id = :run", run=run)

    assert world.claim(me)[0].model == f"{policy}@0"


def test_a_runner_claims_its_own_grants_alone(world: World, run: str) -> None:
    mine, theirs = world.join(), world.join()
    first, second = world.group(run, 2)
    world.grant([first], mine)
    world.grant([second], theirs)

    assert [c.rollout_id for c in world.claim(mine)] == [first]
    assert world.claim(mine) == []
    assert world.states([first, second]) == ["RUNNING", "GRANTED"]


def test_a_claim_takes_no_more_than_its_limit_oldest_grant_first(world: World, run: str) -> None:
    ids, me = world.group(run, 3), world.join()
    for rollout in reversed(ids):
        world.grant([rollout], me)

    assert {c.rollout_id for c in world.claim(me, 2)} == {ids[2], ids[1]}


def test_members_of_a_group_are_claimed_together(world: World, run: str) -> None:
    me, planned = world.join(slots=99), [world.group(run, 4) for _ in range(5)]
    world.grant([i for group in reversed(planned) for i in group], me)

    for group in planned:
        assert {c.rollout_id for c in world.claim(me, 4)} == set(group)


def test_concurrent_claims_never_share_a_rollout(world: World, run: str) -> None:
    me, ids = world.join(slots=60), world.group(run, 60)
    world.grant(ids, me)
    together = threading.Barrier(4)

    def claim(_: int) -> list[str]:
        together.wait()
        return [c.rollout_id for _ in range(6) for c in world.claim(me, 5)]

    with ThreadPoolExecutor(4) as pool:
        claimed = [rollout for batch in pool.map(claim, range(4)) for rollout in batch]

    assert sorted(claimed) == sorted(ids)


def test_a_claim_waits_for_no_other_claim(world: World, run: str) -> None:
    me, ids = world.join(), world.group(run, 2)
    world.grant(ids, me)

    with world.work() as slow:
        held = attempts.claim(slow, me, 1)
        others = world.claim(me, 8)

    assert {c.rollout_id for c in held} | {c.rollout_id for c in others} == set(ids)
    assert len(held) == len(others) == 1


def test_a_produced_attempt_leaves_one_grading(world: World, run: str) -> None:
    ids, me = world.group(run, 2), world.join()
    keys = world.aboard(ids, me)

    assert world.produce(keys, oldest=4) == set(ids)
    assert world.states(ids) == ["PRODUCED", "PRODUCED"]
    assert sorted(world.column("SELECT rollout_id FROM gradings WHERE state = 'QUEUED'")) == sorted(ids)
    assert world.value("SELECT oldest_version FROM rollouts WHERE id = :r", r=ids[0]) == 4
    assert world.column("SELECT outcome FROM attempts WHERE ended_at IS NOT NULL") == ["completed"] * 2


def test_producing_twice_grades_once(world: World, run: str) -> None:
    keys = world.aboard(world.group(run, 1), world.join())

    assert len(world.produce(keys)) == 1
    assert world.produce(keys) == set()
    assert world.value("SELECT count(*) FROM gradings") == 1


def test_a_produce_that_was_fenced_off_writes_nothing(world: World, run: str) -> None:
    """The reaper takes the rollout back; the late runner must change nothing."""
    (rollout,) = world.group(run, 1)
    lost, heir = world.join(), world.join()
    (old,) = world.aboard([rollout], lost)
    with world.work() as session:
        move(session, [old], State.QUEUED, actor=Actor.DISPATCHER, only_from=[State.RUNNING])
    (new,) = world.aboard([rollout], heir)

    assert world.produce([old]) == set()

    assert world.state(rollout) == "RUNNING"
    assert world.value("SELECT count(*) FROM gradings") == 0
    assert world.value("SELECT artifact FROM attempts WHERE fence = :f", f=old.fence) is None
    assert world.produce([new]) == {rollout}
    assert world.value("SELECT fence FROM gradings") == new.fence


def test_of_a_batch_only_what_is_still_held_is_produced(world: World, run: str) -> None:
    first, second = world.group(run, 2)
    keys = {k.rollout_id: k for k in world.aboard([first, second], world.join())}
    stale = Key(rollout_id=second, fence=0)

    assert world.produce([keys[first], stale]) == {first}
    assert world.states([first, second]) == ["PRODUCED", "RUNNING"]


def test_what_the_policy_did_is_not_a_failure_and_the_reverse(world: World, run: str) -> None:
    (key,) = world.aboard(world.group(run, 1), world.join())

    with pytest.raises(ValueError, match=r"call fail\(\)"), world.work() as session:
        attempts.produce(
            session, [attempts.Produced(key=key, outcome=Outcome.STARVED, artifact="", sha256="")]
        )
    with pytest.raises(ValueError, match=r"completed is a valid outcome: call produce\(\)"):
        world.fail(key, Outcome.COMPLETED)
    assert world.state(key.rollout_id) == "RUNNING"


@pytest.mark.parametrize("outcome", [o for o in INVALID if str(ruling(o).charge) == "infrastructure"])
def test_the_infrastructures_failures_are_retried_within_their_budget(
    world: World, run: str, outcome: Outcome
) -> None:
    (rollout,) = world.group(run, 1)
    ends: list[State | None] = []
    for _ in range(3):
        (key,) = world.aboard([rollout], world.join())
        ends.append(world.fail(key, outcome))

    assert ends == [State.QUEUED, State.QUEUED, State.FAILED]
    assert world.row(rollout).infrastructure_failures == 3
    assert world.column("SELECT outcome FROM attempts ORDER BY fence") == [str(outcome)] * 3
    assert world.value("SELECT count(*) FROM gradings") == 0


def test_preemption_is_free(world: World, run: str) -> None:
    (rollout,) = world.group(run, 1)
    for _ in range(4):
        (key,) = world.aboard([rollout], world.join())
        assert world.fail(key, Outcome.PREEMPTED) is State.QUEUED

    assert world.row(rollout).infrastructure_failures == 0


def test_a_failure_backs_off_before_the_next_grant(world: World, run: str) -> None:
    (rollout,) = world.group(run, 1)
    (key,) = world.aboard([rollout], world.join())
    failed = attempts.Failed(key=key, outcome=Outcome.SANDBOX_FAILED, reason="broke", jitter=0.999)

    with world.work() as session:
        attempts.fail(session, failed)
        assert set(pools.market(session).keys) == set()
        session.execute(text("UPDATE rollouts SET not_before = clock_timestamp()"))
        assert set(pools.market(session).keys) == {rollout}


def test_a_failure_that_was_fenced_off_is_charged_to_nobody(world: World, run: str) -> None:
    (rollout,) = world.group(run, 1)
    (old,) = world.aboard([rollout], world.join())
    with world.work() as session:
        move(session, [old], State.QUEUED, actor=Actor.DISPATCHER, only_from=[State.RUNNING])

    assert world.fail(old) is None
    assert world.fail(Key(rollout_id="nobody", fence=1)) is None
    assert world.row(rollout).infrastructure_failures == 0


def test_a_failed_attempt_keeps_its_artifact_and_reason(world: World, run: str) -> None:
    (key,) = world.aboard(world.group(run, 1), world.join())
    failed = attempts.Failed(
        key=key, outcome=Outcome.STARVED, reason="r" * 5_000, jitter=0, artifact="a", sha256="s"
    )

    with world.work() as session:
        attempts.fail(session, failed)

    assert world.value("SELECT artifact FROM attempts") == "a"
    assert world.value("SELECT length(reason) FROM attempts") == 2_000


def test_a_stopped_rollout_is_cancelled_and_a_yielded_one_queued(world: World, run: str) -> None:
    first, second, third = world.group(run, 3)
    keys = {k.rollout_id: k for k in world.aboard([first, second, third], world.join())}
    with world.work() as session:
        move(session, [keys[first]], State.CANCELLING, actor=Actor.REGISTRY)
        move(session, [keys[second]], State.PREEMPTING, actor=Actor.DISPATCHER)

    with world.work() as session:
        attempts.stopped(session, list(keys.values()))

    assert world.states([first, second, third]) == ["CANCELLED", "QUEUED", "RUNNING"]
    assert world.row(second).infrastructure_failures == 0
    open_attempts = world.column("SELECT rollout_id FROM attempts WHERE ended_at IS NULL")
    assert open_attempts == [third]


def test_a_new_grant_is_a_new_attempt_under_a_new_fence(world: World, run: str) -> None:
    (rollout,) = world.group(run, 1)
    fences: list[int] = []
    for _ in range(2):
        (key,) = world.aboard([rollout], world.join())
        fences.append(key.fence)
        world.fail(key)

    assert fences[0] < fences[1]
    assert world.column("SELECT fence FROM attempts ORDER BY fence") == fences


def test_budgets_come_from_the_runs_config() -> None:
    budgets = attempts.budgets_of({"rollouts": {"infrastructure_retries": 7, "grader_retries": 0}})

    assert (budgets.infrastructure, budgets.grader) == (7, 0)
    assert attempts.budgets_of({}) == attempts.Budgets()


def test_a_wait_is_counted_by_the_databases_clock(world: World, run: str) -> None:
    (key,) = world.aboard(world.group(run, 1), world.join())
    world.fail(key)
    behind = world.value(
        "SELECT clock_timestamp() - not_before FROM rollouts WHERE id = :r", r=key.rollout_id
    )

    assert timedelta() <= behind < timedelta(minutes=5)
