"""A turn of the loop: settle, plan within the room there is, grant into free slots, announce."""

from collections import Counter
from datetime import timedelta

import pytest

from services.dispatcher.loop import LOOP, Loop
from services.dispatcher.plan import plan_groups
from tests.integration.dispatcher.conftest import Recorder
from tests.integration.store.world import TRACE, World
from tiltyard.contracts.messages import runner_topic
from tiltyard.core.fleet import GiveUp
from tiltyard.core.ledger import reconcile
from tiltyard.core.rollout import Actor
from tiltyard.store import fleet, leadership, ledger, rollouts, runs, training
from tiltyard.store.runs import RunRow
from tiltyard.store.training import Published


def _turns(loop: Loop, count: int = 2) -> None:
    for _ in range(count):
        loop.turn()


def _groups(world: World, run: str) -> Counter[str]:
    return Counter(world.column("SELECT state FROM groups WHERE run_id = :r", r=run))


def _host(world: World, incarnation: str, rewards: list[float], *, oldest: int = 0) -> list[str]:
    """Do what a runner and an evaluator do with everything granted; rewards are dealt to members in turn."""
    claims = world.claim(incarnation, 100)
    world.produce([c.key for c in claims], oldest=oldest)
    ids = [c.rollout_id for c in claims]
    dealt = {
        i: rewards[world.value("SELECT member FROM rollouts WHERE id = :r", r=i) % len(rewards)] for i in ids
    }
    assert len(world.score(dealt)) == len(ids)
    return ids


def _train_step(world: World, run: RunRow, *, groups: int) -> int:
    with world.work() as session:
        step = training.begin_step(session, run.id, run.fence, groups=groups, traceparent=TRACE)
    assert step is not None
    with world.work() as session:
        training.commit_step(
            session,
            run.id,
            run.fence,
            step,
            published=Published(version=step, prefix="p", files={}, checkpoint=False),
            manifest=f"m/{step}",
            metrics={},
        )
    return step


def _lease(world: World) -> RunRow:
    with world.work() as session:
        run = training.lease(session, "trainer", kinds=["train"])
    assert run is not None
    return run


def _balanced(world: World, run: str) -> bool:
    with world.work() as session:
        return reconcile(ledger.load(session, run)) == []


def test_an_evaluation_tries_each_task_once_a_window_at_a_time_and_completes(
    world: World, loop: Loop
) -> None:
    run, me = world.evaluation(tasks=5, samples=2, window=2), world.join(slots=100)
    seen: list[int] = []
    while world.value("SELECT state FROM runs WHERE id = :r", r=run) != "COMPLETED":
        _turns(loop)
        seen.append(_groups(world, run)["OPEN"])
        _host(world, me, [0.0, 1.0])
        assert len(seen) < 10

    assert seen == [2, 2, 1, 0]
    assert _groups(world, run) == {"EVALUATED": 5}
    assert world.value("SELECT count(DISTINCT version_id) FROM groups WHERE run_id = :r", r=run) == 5
    assert set(world.column("SELECT state FROM rollouts WHERE run_id = :r", r=run)) == {"EVALUATED"}
    assert _balanced(world, run)


def test_a_task_that_is_admitted_while_an_evaluation_runs_is_tried_once_too(world: World, loop: Loop) -> None:
    run, me = world.evaluation(tasks=3, samples=1, window=1), world.join()
    taskset = world.value("SELECT config->>'taskset' FROM runs WHERE id = :r", r=run)
    _turns(loop)
    late = world.tasks(taskset, 3)
    for _ in range(7):
        _host(world, me, [1.0])
        _turns(loop)

    planned = Counter(world.column("SELECT version_id FROM groups WHERE run_id = :r", r=run))
    assert set(planned.values()) == {1}
    assert set(late) < set(planned)
    assert world.value("SELECT state FROM runs WHERE id = :r", r=run) == "COMPLETED"


def test_a_training_run_has_no_more_in_flight_than_its_room(world: World, loop: Loop) -> None:
    run = world.train(tasks=3, groups_per_step=2, group_size=2, max_staleness=1)

    _turns(loop, 4)

    assert _groups(world, run) == {"OPEN": 4}
    assert world.value("SELECT groups_planned FROM runs WHERE id = :r", r=run) == 4


def test_ready_groups_take_room_until_they_are_trained_on(world: World, loop: Loop) -> None:
    run, me = world.train(tasks=3, groups_per_step=2, group_size=2, max_staleness=0), world.join(slots=100)
    _turns(loop)
    _host(world, me, [0.0, 1.0])
    _turns(loop)
    assert _groups(world, run) == {"READY": 2}

    _train_step(world, _lease(world), groups=2)
    _turns(loop)

    assert _groups(world, run) == {"TRAINED": 2, "OPEN": 2}


def test_a_filtered_group_is_refilled(world: World, loop: Loop) -> None:
    run, me = world.train(groups_per_step=1, group_size=2, max_staleness=0), world.join()
    _turns(loop)
    _host(world, me, [1.0, 1.0])
    _turns(loop)

    assert _groups(world, run) == {"FILTERED": 1, "OPEN": 1}
    assert world.value("SELECT reason FROM groups WHERE state = 'FILTERED'") == "zero_spread"


def test_a_group_of_a_policy_too_old_is_stale_and_refilled(world: World, loop: Loop) -> None:
    run, me = world.train(groups_per_step=1, group_size=2, max_staleness=1, steps=9), world.join(slots=100)
    _turns(loop)
    claims = world.claim(me, 2)
    leased = _lease(world)
    for version in (1, 2):
        published = Published(version=version, prefix="p", files={}, checkpoint=False)
        with world.work() as session:
            training.publish(session, run, leased.fence, published, step=None)
    world.produce([c.key for c in claims], oldest=0)
    world.score({c.rollout_id: float(n) for n, c in enumerate(claims)})

    _turns(loop)

    assert _groups(world, run) == {"STALE": 1, "OPEN": 2}


def test_a_ready_group_that_waited_too_long_is_stale(world: World, loop: Loop) -> None:
    run, me = world.train(groups_per_step=2, group_size=2, max_staleness=0), world.join(slots=2)
    _turns(loop)
    _host(world, me, [0.0, 1.0], oldest=0)
    loop.turn()
    assert _groups(world, run)["READY"] == 1
    leased = _lease(world)
    with world.work() as session:
        published = Published(version=1, prefix="p", files={}, checkpoint=False)
        training.publish(session, run, leased.fence, published, step=None)

    loop.turn()

    assert _groups(world, run)["STALE"] == 1


@pytest.mark.parametrize(
    ("withdrawn", "state", "reason"),
    [
        ((0,), "READY", "carries gradient"),
        ((0, 1), "FILTERED", "zero_spread"),
        ((0, 1, 2), "FILTERED", "too_few_valid"),
        ((0, 1, 2, 3), "FILTERED", "too_few_valid"),
    ],
)
def test_a_ready_group_that_loses_members_is_settled_by_those_who_are_left(
    world: World, loop: Loop, withdrawn: tuple[int, ...], state: str, reason: str
) -> None:
    """Rewards are 0, 0, 1, 1: who was withdrawn is absent, and what carries no gradient is not trained on."""
    run, me = world.train(groups_per_step=1, group_size=4, max_staleness=0), world.join()
    _turns(loop)
    ids = _host(world, me, [0.0, 0.0, 1.0, 1.0])
    loop.turn()
    assert _groups(world, run) == {"READY": 1}
    members = sorted(ids, key=lambda i: world.value("SELECT member FROM rollouts WHERE id = :r", r=i))
    keys = [world.key(members[n]) for n in withdrawn]
    with world.work() as session:
        rollouts.cancel(session, keys, actor=Actor.REGISTRY, reason="withdrawn")

    leased = _lease(world)
    if len(withdrawn) > 2:
        with world.work() as session:
            step = training.begin_step(session, run, leased.fence, groups=1, traceparent=TRACE)
            assert step is None, "fewer than two are left, whether or not the dispatcher has looked"
    loop.turn()

    left = [world.state(m) for n, m in enumerate(members) if n not in withdrawn]
    assert set(left) <= {state}
    assert _groups(world, run)[state] == 1
    assert world.value("SELECT reason FROM groups WHERE state = :s", s=state) == reason
    assert _balanced(world, run)


def test_a_run_trains_to_its_last_step_and_leaves_nothing(world: World, loop: Loop) -> None:
    run = world.train(tasks=4, groups_per_step=2, group_size=2, steps=3, max_staleness=1)
    me, leased = world.join(slots=100), _lease(world)
    for step in (1, 2, 3):
        while _groups(world, run)["READY"] < 2:
            _turns(loop)
            _host(world, me, [0.0, 1.0], oldest=step - 1)
        assert _train_step(world, leased, groups=2) == step
    _turns(loop)
    with world.work() as session:
        training.complete(session, run, leased.fence)
    _turns(loop)

    assert _groups(world, run) == {"TRAINED": 6}
    assert world.value("SELECT count(*) FROM rollouts WHERE state = 'TRAINED'") == 12
    assert _balanced(world, run)


@pytest.mark.parametrize("state", ["SUBMITTED", "QUARANTINED"])
def test_a_taskset_without_active_tasks_is_waited_for(world: World, loop: Loop, state: str) -> None:
    """A resubmission replaces a taskset's only version by one that is not admitted yet."""
    training_run, evaluation = world.train(), world.evaluation()
    world.sql("UPDATE task_versions SET state = :s", s=state)

    _turns(loop)

    assert world.value("SELECT count(*) FROM groups") == 0
    assert world.value("SELECT state FROM runs WHERE id = :r", r=evaluation) == "PENDING"
    world.sql("UPDATE task_versions SET state = 'ACTIVE'")
    _turns(loop)
    assert _groups(world, training_run)["OPEN"]
    assert _groups(world, evaluation) == {"OPEN": 1}


def test_training_waits_for_its_first_policy(world: World, loop: Loop) -> None:
    run = world.train(published=False)

    _turns(loop)

    assert _groups(world, run) == {}


def test_a_warm_start_has_no_rollouts(world: World, loop: Loop) -> None:
    world.sft()

    assert loop.turn() is False


def test_a_run_that_ended_after_it_was_looked_at_gets_no_more_groups(world: World) -> None:
    run = world.train()
    with world.work() as session:
        seen = runs.get(session, run)
        leader = leadership.lead(session, LOOP, "d1")
        runs.finish(session, run, "CANCELLED", actor=Actor.REGISTRY)
    assert leader is not None

    assert plan_groups(world.work, leader, seen) == 0
    assert _groups(world, run) == {}


def test_draws_go_on_where_they_stopped_whoever_leads(world: World, recorder: Recorder) -> None:
    run = world.train(tasks=4, groups_per_step=1, group_size=2, max_staleness=0, steps=99)
    me = world.join(slots=100)
    for turn in range(8):
        loop = Loop(work=world.work, publisher=recorder.publisher, holder=f"d{turn}", doubts_time=False)
        world.sql("UPDATE leaderships SET lease_until = clock_timestamp()")
        _turns(loop)
        _host(world, me, [1.0, 1.0])

    drawn = world.column('SELECT version_id FROM groups WHERE run_id = :r ORDER BY "index"', r=run)
    assert len(set(drawn[:4])) == len(set(drawn[4:8])) == 4


def test_grants_go_into_free_slots_alone_and_wake_their_runner(
    world: World, loop: Loop, recorder: Recorder
) -> None:
    run = world.train(groups_per_step=8, group_size=4)
    small, large, draining = world.join(slots=2), world.join(slots=5), world.join(slots=9)
    world.sql("UPDATE runners SET draining = true WHERE incarnation = :i", i=draining)

    _turns(loop, 3)

    held = Counter(world.column("SELECT incarnation FROM rollouts WHERE state = 'GRANTED'"))
    assert held == {small: 2, large: 5}
    assert Counter(recorder.take_hints()) == {runner_topic(small): 1, runner_topic(large): 1}
    assert world.value("SELECT count(*) FROM rollouts WHERE run_id = :r", r=run) > 7


def test_a_grant_begins_a_trace_of_its_own(world: World, loop: Loop) -> None:
    world.train(group_size=4)
    world.join()

    _turns(loop)

    traces = world.column("SELECT traceparent FROM attempts")
    assert len(traces) > 1
    assert len([t for t in traces if t]) in (0, len(set(traces)))


def test_a_lonely_rollout_has_its_runner_to_itself_turn_after_turn(world: World, loop: Loop) -> None:
    run, me = world.train(groups_per_step=4, group_size=2), world.join(slots=8)
    _turns(loop)
    lonely = world.value("SELECT min(id) FROM rollouts WHERE run_id = :r", r=run)
    world.sql("UPDATE rollouts SET alone = true WHERE id = :r", r=lonely)
    with world.work() as session:
        fleet.leave(session, me)
    heir = world.join(slots=8)

    _turns(loop, 3)

    assert world.column("SELECT id FROM rollouts WHERE incarnation = :i AND state = 'GRANTED'", i=heir) == [
        lonely
    ]
    assert len(world.claim(heir, 9)) == 1
    _turns(loop)
    assert world.claim(heir, 9) == []
    with world.work() as session:
        lost = fleet.lose(session, _give_up(heir))
    assert lost == [lonely]
    assert world.state(lonely) == "DEAD"


def _give_up(incarnation: str) -> GiveUp:
    return GiveUp(incarnation=incarnation, silent_for=timedelta(seconds=31))


def test_what_waits_to_be_graded_and_admitted_is_announced_and_again_after_a_while(
    world: World, loop: Loop, recorder: Recorder
) -> None:
    run = world.train()
    world.produce(world.aboard(world.group(run, 2), world.join()))
    gradings = world.column("SELECT id FROM gradings ORDER BY id")
    admissions = world.column("SELECT id FROM admissions ORDER BY id")

    _turns(loop, 3)
    first = recorder.take_jobs()
    assert {kind: sorted(ids) for kind, ids in first.items()} == {"grade": gradings, "admit": admissions}

    world.sql("UPDATE gradings SET announced_at = announced_at - interval '31 seconds'")
    _turns(loop)
    assert {kind: sorted(ids) for kind, ids in recorder.take_jobs().items()} == {"grade": gradings}


def test_a_turn_that_changed_nothing_says_so(world: World, loop: Loop) -> None:
    assert loop.turn() is False
    world.train()
    assert loop.turn() is True
