"""Runs: pinned when made, looked up by name or id, planned only while they live."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.store.world import TENANT, World
from tiltyard.contracts.run_config import EvaluationRun, FreshPolicy, TrainRun
from tiltyard.core.rollout import Actor
from tiltyard.store import policies, runs
from tiltyard.store.policies import NoSuchPolicy
from tiltyard.store.runs import NameTaken, NoSuchRun, NothingToRun


def _create(world: World, config: TrainRun | EvaluationRun) -> str:
    with world.work() as session:
        return runs.create(session, TENANT, config)


def _train(name: str, taskset: str) -> TrainRun:
    return TrainRun(kind="train", name=name, taskset=taskset, policy=FreshPolicy())


def test_a_policy_is_pinned_to_a_version_when_the_run_is_made(world: World) -> None:
    trained = world.train()
    world.tasks("held-out")
    name = world.value("SELECT name FROM runs WHERE id = :r", r=trained)
    made = _create(
        world, EvaluationRun(kind="evaluation", name="e", taskset="held-out", policy=f"{name}@latest")
    )
    with world.work() as session:
        policies.publish(session, trained, 1, step=None, prefix="p", files={}, checkpoint=False)

    with world.work() as session:
        run = runs.get(session, made)
    assert (run.policy_run_id, run.policy_version, run.state) == (trained, 0, "PENDING")


def test_a_name_is_taken_once(world: World) -> None:
    world.tasks("set")
    _create(world, _train("r", "set"))

    with pytest.raises(NameTaken, match="a run named 'r' exists; choose another name"):
        _create(world, _train("r", "set"))


def test_of_two_that_take_a_name_at_once_one_is_told(world: World) -> None:
    world.tasks("set")
    together = threading.Barrier(4)

    def create(_: int) -> str | None:
        together.wait()
        try:
            return _create(world, _train("r", "set"))
        except NameTaken:
            return None

    with ThreadPoolExecutor(4) as pool:
        assert len([made for made in pool.map(create, range(4)) if made]) == 1


def test_an_unknown_taskset_is_refused_by_name(world: World) -> None:
    world.tasks("set")

    with pytest.raises(NothingToRun, match="there is no taskset 'sett'"):
        _create(world, _train("r", "sett"))


def test_a_taskset_without_active_tasks_is_refused_with_the_cure(world: World) -> None:
    world.tasks("set", 2, state="QUARANTINED")

    with pytest.raises(NothingToRun, match="no ACTIVE task among its 2"):
        _create(world, _train("r", "set"))


@pytest.mark.parametrize("policy", ["nobody@latest", "nobody@0", "{name}@7"])
def test_an_unknown_policy_is_refused_by_name(world: World, policy: str) -> None:
    name = world.value("SELECT name FROM runs WHERE id = :r", r=world.train())
    world.tasks("set")
    wanted = policy.format(name=name)

    with pytest.raises(NoSuchPolicy, match=f"no published policy '{wanted}'"):
        _create(world, EvaluationRun(kind="evaluation", name="e", taskset="set", policy=wanted))


def test_a_withdrawn_version_is_never_the_latest(world: World) -> None:
    run = world.train()
    with world.work() as session:
        for version in (1, 2):
            policies.publish(session, run, version, step=None, prefix="p", files={}, checkpoint=False)
        assert policies.withdraw_after(session, run, 0) == [1, 2]
        latest = policies.latest(session, run)
        assert policies.latest_of(session, [run, "nobody"]) == {run: 0}
        assert policies.next_version(session, run) == 3
        with pytest.raises(NoSuchPolicy):
            policies.resolve(session, TENANT, f"{run}@2")

    assert latest is not None
    assert latest.version == 0


def test_the_first_version_of_a_run_is_zero(world: World) -> None:
    run = world.train(published=False)

    with world.work() as session:
        assert policies.next_version(session, run) == 0
        assert policies.latest(session, run) is None
        assert policies.get(session, run, 0) is None


def test_a_run_is_found_by_name_or_id(world: World) -> None:
    run = world.train()
    name = world.value("SELECT name FROM runs")

    with world.work() as session:
        assert runs.find(session, TENANT, name) == runs.find(session, TENANT, run) == run
        with pytest.raises(NoSuchRun, match="there is no run 'nobody'"):
            runs.find(session, TENANT, "nobody")
        with pytest.raises(NoSuchRun):
            runs.find(session, "another tenant", name)


def test_only_active_tasks_are_planned_in_a_fixed_order(world: World) -> None:
    run = world.train(tasks=3)
    world.sql("UPDATE task_versions SET state = 'QUARANTINED' WHERE id = (SELECT min(id) FROM task_versions)")

    with world.work() as session:
        row = runs.get(session, run)
        planned = runs.planned_versions(session, row)
        assert planned == runs.planned_versions(session, row)
    assert len(planned) == 2


def test_a_task_that_has_its_group_is_not_planned_again(world: World) -> None:
    run = world.train(tasks=3)
    world.group(run)

    with world.work() as session:
        row = runs.get(session, run)
        assert runs.unplanned_versions(session, row) == runs.planned_versions(session, row)[1:]


def test_nothing_is_planned_for_a_run_that_has_ended(world: World) -> None:
    run = world.train()
    with world.work() as session:
        assert runs.count_planned(session, run, 2) == 2
        assert runs.finish(session, run, "CANCELLED", actor=Actor.REGISTRY)
        assert runs.count_planned(session, run, 1) is None

    assert world.value("SELECT groups_planned FROM runs") == 2


def test_starting_a_run_that_is_past_that_changes_nothing(world: World) -> None:
    run = world.train()
    with world.work() as session:
        runs.finish(session, run, "CANCELLED", actor=Actor.REGISTRY)
        runs.start(session, run)
        assert runs.living(session, ["train"]) == []

    assert world.value("SELECT state FROM runs") == "CANCELLED"


def test_runs_past_their_deadline_are_overdue(world: World) -> None:
    late, _ = world.train(deadline_seconds=0.001), world.train()

    with world.work() as session:
        assert runs.overdue(session) == [late]
