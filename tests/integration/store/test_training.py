"""Training: one trainer a run, one step a group, and a step that counts once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import text

from tests.integration.store.world import TRACE, World
from tiltyard.core.group import Settlement, Verdict
from tiltyard.core.ledger import reconcile
from tiltyard.core.rollout import Actor, State
from tiltyard.store import groups, ledger, policies, runs, training
from tiltyard.store.groups import OpenGroup
from tiltyard.store.runs import RunRow
from tiltyard.store.training import LostRun, Published, Step


def _lease(world: World, holder: str = "t1") -> RunRow:
    with world.work() as session:
        run = training.lease(session, holder)
    assert run is not None
    return run


def _settle(world: World, run: str, verdict: Verdict = Verdict.READY) -> list[OpenGroup]:
    with world.work() as session:
        found = groups.open_groups(session, run)
        for group in found:
            groups.close(session, [(group, Settlement(verdict=verdict, reason="test"))])
    return found


def _ready(world: World, run: str, count: int = 1) -> list[list[str]]:
    """READY groups of two; their rollouts' ids, oldest group first."""
    ids = [world.scored(run, [0.0, 1.0]) for _ in range(count)]
    _settle(world, run)
    return ids


def _begin(world: World, run: RunRow, *, groups: int = 1) -> int | None:
    with world.work() as session:
        return training.begin_step(session, run.id, run.fence, groups=groups, traceparent=TRACE)


def _commit(world: World, run: RunRow, step: int, *, version: int | None = None) -> None:
    published = Published(version=version or step, prefix=f"p/{step}/", files={"w": "0"}, checkpoint=True)
    with world.work() as session:
        training.commit_step(
            session, run.id, run.fence, step, published=published, manifest=f"m/{step}", metrics={"loss": 0.5}
        )


def _steps(world: World, run: str) -> list[Step]:
    with world.work() as session:
        return training.steps(session, run)


def test_a_trainer_takes_the_oldest_living_run_under_a_new_fence(world: World) -> None:
    first, _ = world.train(), world.train()

    run = _lease(world)

    assert (run.id, run.fence, run.state) == (first, 1, "RUNNING")


def test_a_pending_run_starts_when_a_trainer_takes_it(world: World) -> None:
    world.sft()

    assert _lease(world).state == "RUNNING"
    assert world.value("SELECT started_at IS NOT NULL FROM runs")


def test_a_held_run_is_not_leased_again(world: World) -> None:
    world.train()
    _lease(world, "t1")

    with world.work() as session:
        assert training.lease(session, "t2") is None


def test_two_trainers_that_ask_at_once_get_different_runs(world: World) -> None:
    made = {world.train(), world.train()}
    together = threading.Barrier(2)

    def ask(holder: str) -> str:
        together.wait()
        return _lease(world, holder).id

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(ask, ["t1", "t2"])) == made


def test_evaluations_are_not_for_trainers(world: World) -> None:
    world.evaluation()

    with world.work() as session:
        assert training.lease(session, "t1") is None


def test_a_lapsed_or_released_run_passes_to_another_and_fences_the_first_off(world: World) -> None:
    world.train()
    first = _lease(world, "t1")
    world.sql("UPDATE runs SET lease_until = clock_timestamp() - interval '1 second'")
    second = _lease(world, "t2")
    with world.work() as session:
        training.release(session, second.id, second.fence)
    third = _lease(world, "t3")

    assert [first.fence, second.fence, third.fence] == [1, 2, 3]
    for old in (first, second):
        with pytest.raises(LostRun, match=f"no longer held under fence {old.fence}"), world.work() as session:
            training.renew(session, old.id, old.fence)


def test_a_late_release_takes_the_run_from_nobody(world: World) -> None:
    world.train()
    first = _lease(world, "t1")
    world.sql("UPDATE runs SET lease_until = clock_timestamp() - interval '1 second'")
    _lease(world, "t2")
    with world.work() as session:
        training.release(session, first.id, first.fence)

    assert world.value("SELECT holder FROM runs") == "t2"


def test_a_step_takes_the_oldest_ready_groups_in_order(world: World) -> None:
    run = world.train()
    ids = _ready(world, run, 3)
    leased = _lease(world)

    assert _begin(world, leased, groups=2) == 1

    (step,) = _steps(world, run)
    assert [[m.rollout_id for m in g.members] for g in step.groups] == ids[:2]
    assert [[m.reward for m in g.members] for g in step.groups] == [[0.0, 1.0]] * 2
    assert all(m.artifact == f"a/{m.rollout_id}/{m.fence}" for g in step.groups for m in g.members)
    assert [world.states(i) for i in ids] == [["TRAINING"] * 2, ["TRAINING"] * 2, ["READY"] * 2]


def test_a_step_with_too_few_ready_groups_does_not_begin(world: World) -> None:
    run = world.train()
    ids = _ready(world, run)

    assert _begin(world, _lease(world), groups=2) is None
    assert _steps(world, run) == []
    assert world.states(ids[0]) == ["READY", "READY"]


def test_a_committed_step_publishes_its_version_and_trains_its_rollouts_together(world: World) -> None:
    run = world.train()
    (ids,) = _ready(world, run)
    leased = _lease(world)
    assert _begin(world, leased) == 1

    _commit(world, leased, 1)

    assert world.states(ids) == ["TRAINED", "TRAINED"]
    (step,) = _steps(world, run)
    assert (step.state, step.policy_version) == ("COMMITTED", 1)
    with world.work() as session:
        latest = policies.latest(session, run)
        assert reconcile(ledger.load(session, run)) == []
        assert ledger.manifest_keys(session, run) == {1: "m/1"}
    assert latest is not None
    assert (latest.version, latest.step, latest.files) == (1, 1, {"w": "0"})


def test_committing_a_step_twice_counts_once(world: World) -> None:
    run = world.train()
    _ready(world, run)
    leased = _lease(world)
    _begin(world, leased)
    _commit(world, leased, 1)

    with pytest.raises(LostRun, match=f"step 1 of run {run} is not under way"):
        _commit(world, leased, 1, version=2)

    assert world.column("SELECT version FROM policy_versions WHERE run_id = :r ORDER BY 1", r=run) == [0, 1]


def test_a_new_holder_commits_what_a_dead_one_began(world: World) -> None:
    run = world.train()
    (ids,) = _ready(world, run)
    first = _lease(world, "t1")
    _begin(world, first)
    world.sql("UPDATE runs SET lease_until = clock_timestamp() - interval '1 second'")
    second = _lease(world, "t2")

    (step,) = _steps(world, run)
    assert step.state == "STARTED"
    with pytest.raises(LostRun):
        _commit(world, first, 1)
    assert world.states(ids) == ["TRAINING", "TRAINING"]
    _commit(world, second, 1)
    assert world.states(ids) == ["TRAINED", "TRAINED"]


def test_a_trainer_that_lost_its_run_begins_and_publishes_nothing(world: World) -> None:
    run = world.train()
    _ready(world, run)
    first = _lease(world, "t1")
    world.sql("UPDATE runs SET lease_until = clock_timestamp() - interval '1 second'")
    _lease(world, "t2")
    late = Published(version=9, prefix="p", files={}, checkpoint=False)

    with pytest.raises(LostRun):
        _begin(world, first)
    with pytest.raises(LostRun), world.work() as session:
        training.publish(session, run, first.fence, late, step=None)
    with pytest.raises(LostRun), world.work() as session:
        training.complete(session, run, first.fence)
    with pytest.raises(LostRun), world.work() as session:
        training.give_up(session, run, first.fence, "late")
    assert _steps(world, run) == []
    assert world.value("SELECT max(version) FROM policy_versions WHERE run_id = :r", r=run) == 0


def test_a_group_never_stands_in_two_steps(world: World) -> None:
    run = world.train()
    _ready(world, run, 4)
    leased = _lease(world)
    together = threading.Barrier(4)

    def begin(_: int) -> int | None:
        together.wait()
        return _begin(world, leased)

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(begin, range(4)))

    assert sorted(n for n in numbers if n is not None) == [1, 2, 3, 4]
    assert world.value("SELECT count(DISTINCT group_id) FROM step_groups") == 4


def test_steps_are_numbered_on_after_one_was_withdrawn(world: World) -> None:
    run = world.train()
    _ready(world, run, 2)
    leased = _lease(world)
    _begin(world, leased)
    world.sql("UPDATE training_steps SET state = 'WITHDRAWN'")

    assert _begin(world, leased) == 2
    assert [s.number for s in _steps(world, run)] == [2]


def test_a_step_leaves_out_no_member_of_a_large_group(world: World) -> None:
    run = world.train()
    world.scored(run, [float(i % 2) for i in range(300)])
    _settle(world, run)
    leased = _lease(world)
    _begin(world, leased)
    _commit(world, leased, 1)

    assert world.value("SELECT count(*) FROM rollouts WHERE state = 'TRAINED'") == 300


def test_an_invalid_member_of_a_trained_group_has_no_reward(world: World) -> None:
    run = world.train()
    ids = world.group(run, 3)
    keys = {k.rollout_id: k for k in world.aboard(ids, world.join())}
    world.produce([keys[ids[0]], keys[ids[2]]])
    world.sql("UPDATE runs SET config = jsonb_set(config, '{rollouts,infrastructure_retries}', '0')")
    assert world.fail(keys[ids[1]]) is State.FAILED
    world.score({ids[0]: 0.0, ids[2]: 1.0})
    _settle(world, run)
    leased = _lease(world)
    _begin(world, leased)

    (group,) = _steps(world, run)[0].groups

    assert [(m.state, m.reward) for m in group.members] == [
        ("TRAINING", 0.0),
        ("FAILED", None),
        ("TRAINING", 1.0),
    ]


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "CANCELLED"])
def test_ending_a_run_sweeps_everything_that_it_had_under_way(world: World, end: str) -> None:
    run = world.train()
    (trained,) = _ready(world, run)
    leased = _lease(world)
    _begin(world, leased)
    _commit(world, leased, 1)
    (training_now,) = _ready(world, run)
    _begin(world, leased)
    (ready,) = _ready(world, run)
    queued = world.group(run, 1)
    running = world.group(run, 1)
    world.aboard(running, world.join())
    produced = world.group(run, 1)
    world.produce(world.aboard(produced, world.join()))

    with world.work() as session:
        assert runs.finish(session, run, end, actor=Actor.REGISTRY, reason="enough")
        assert not runs.finish(session, run, "FAILED", actor=Actor.REGISTRY)

    assert world.states(trained) == ["TRAINED", "TRAINED"]
    assert set(world.states([*training_now, *ready, *queued, *produced])) == {"CANCELLED"}
    assert world.states(running) == ["CANCELLING"]
    assert world.column("SELECT state FROM training_steps ORDER BY step") == ["COMMITTED", "WITHDRAWN"]
    assert sorted(world.column("SELECT state FROM groups")) == ["CANCELLED"] * 5 + ["TRAINED"]
    with world.work() as session:
        assert reconcile(ledger.load(session, run)) == []
    with pytest.raises(LostRun):
        _commit(world, leased, 2)


def test_a_run_completes_by_its_trainer(world: World) -> None:
    run = world.train()
    leased = _lease(world)
    with world.work() as session:
        training.complete(session, run, leased.fence)

    assert world.value("SELECT state FROM runs WHERE id = :r", r=run) == "COMPLETED"
    assert world.value("SELECT finished_at IS NOT NULL FROM runs WHERE id = :r", r=run)


def test_a_run_that_cannot_go_on_says_why(world: World) -> None:
    run = world.train()
    leased = _lease(world)
    with world.work() as session:
        training.give_up(session, run, leased.fence, "the loss is not finite")

    assert (
        world.value("SELECT state || ': ' || reason FROM runs WHERE id = :r", r=run)
        == "FAILED: the loss is not finite"
    )


def test_a_step_leaves_groups_alone_that_have_grown_too_old(world: World) -> None:
    world.train()
    run = _lease(world)
    old, fresh = _ready(world, run.id, 2)
    with world.work() as session:
        session.execute(text("UPDATE rollouts SET oldest_version = 3 WHERE id = ANY(:ids)"), {"ids": old})
        session.execute(text("UPDATE rollouts SET oldest_version = 4 WHERE id = ANY(:ids)"), {"ids": fresh})
    with world.work() as session:
        begin = partial(training.begin_step, session, run.id, run.fence, traceparent=TRACE, oldest_allowed=4)
        assert begin(groups=2) is None
        assert begin(groups=1) == 1
    assert [m.rollout_id for g in _steps(world, run.id)[0].groups for m in g.members] == fresh
