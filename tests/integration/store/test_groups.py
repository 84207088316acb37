"""Groups and their scored members change together."""

from datetime import timedelta

import pytest

from tests.integration.store.world import World
from tiltyard.core.group import Settlement, Verdict
from tiltyard.core.plan import Progress
from tiltyard.core.rollout import Actor, State
from tiltyard.store import groups, rollouts
from tiltyard.store.groups import OpenGroup


@pytest.fixture
def run(world: World) -> str:
    return world.train()


def _open(world: World, run: str) -> list[OpenGroup]:
    with world.work() as session:
        return groups.open_groups(session, run)


def _close(world: World, run: str, verdict: Verdict) -> None:
    with world.work() as session:
        for group in groups.open_groups(session, run):
            groups.close(session, [(group, Settlement(verdict=verdict, reason="test"))])


def test_a_group_may_settle_once_nobody_is_on_the_way(world: World, run: str) -> None:
    ids = world.group(run, 2)
    keys = world.aboard(ids, world.join())
    assert _open(world, run) == []

    world.produce(keys)
    assert _open(world, run) == []
    world.score({ids[0]: 0.25, ids[1]: 1.0})

    (group,) = _open(world, run)
    assert [(m.state, m.reward, m.oldest_version) for m in group.members] == [
        (State.SCORED, 0.25, 0),
        (State.SCORED, 1.0, 0),
    ]
    assert [k.rollout_id for k in group.keys] == ids


def test_a_group_past_its_deadline_may_settle_without_its_stragglers(world: World, run: str) -> None:
    first, second = world.group(run, 2, deadline=timedelta(seconds=-1))
    world.aboard([first], world.join())

    (group,) = _open(world, run)

    assert [m.state for m in group.members] == [State.RUNNING, State.QUEUED]
    assert second == group.keys[1].rollout_id


@pytest.mark.parametrize("verdict", [Verdict.READY, Verdict.FILTERED, Verdict.STALE, Verdict.EVALUATED])
def test_scored_members_follow_their_group(world: World, run: str, verdict: Verdict) -> None:
    ids = world.scored(run, [0.0, 1.0])

    _close(world, run, verdict)

    assert world.states(ids) == [str(verdict)] * 2
    assert world.value("SELECT state FROM groups") == str(verdict)
    assert world.value("SELECT settled_at IS NOT NULL FROM groups")


def test_stragglers_are_cancelled_and_the_ended_stay_as_they_are(world: World, run: str) -> None:
    ids = world.group(run, 5, deadline=timedelta(seconds=-1))
    running, produced, scored, failed, queued = ids
    keys = {k.rollout_id: k for k in world.aboard([running, produced, scored, failed], world.join())}
    world.produce([keys[scored]])
    world.score({scored: 1.0})
    world.produce([keys[produced]])
    world.sql("UPDATE runs SET config = jsonb_set(config, '{rollouts,infrastructure_retries}', '0')")
    world.fail(keys[failed])

    _close(world, run, Verdict.FILTERED)

    assert world.states(ids) == ["CANCELLING", "CANCELLED", "FILTERED", "FAILED", "CANCELLED"]
    assert queued == ids[4]
    assert _open(world, run) == []


def test_a_settled_group_does_not_settle_again(world: World, run: str) -> None:
    world.scored(run, [0.0, 1.0])
    (group,) = _open(world, run)
    _close(world, run, Verdict.FILTERED)

    with world.work() as session:
        groups.close(session, [(group, Settlement(verdict=Verdict.READY, reason="late"))])

    assert world.value("SELECT state FROM groups") == "FILTERED"


def test_progress_counts_groups(world: World, run: str) -> None:
    world.scored(run, [0.0, 1.0])
    _close(world, run, Verdict.READY)
    world.scored(run, [0.0, 1.0])
    _close(world, run, Verdict.FILTERED)
    world.group(run)
    world.sql("INSERT INTO training_steps (run_id, step, fence, state) VALUES (:r, 1, 1, 'COMMITTED')", r=run)
    world.sql("INSERT INTO training_steps (run_id, step, fence, state) VALUES (:r, 2, 1, 'WITHDRAWN')", r=run)

    with world.work() as session:
        assert groups.progress(session, run) == Progress(open=1, ready=1, steps_done=1, planned=3)


def test_ready_groups_that_are_old_or_lost_a_member_are_looked_at_again(world: World, run: str) -> None:
    old = world.scored(run, [0.0, 1.0], oldest=3)
    new = world.scored(run, [0.0, 1.0], oldest=4)
    thin = world.scored(run, [0.0, 1.0, 0.5], oldest=4)
    _close(world, run, Verdict.READY)
    with world.work() as session:
        rollouts.cancel(session, [world.key(thin[0])], actor=Actor.REGISTRY, reason="withdrawn")

    with world.work() as session:
        found = groups.doubtful(session, run, oldest_allowed=4)
        first, second = sorted(found, key=lambda g: g.keys[0].rollout_id)
        assert {k.rollout_id for k in first.keys} == set(old)
        assert {k.rollout_id for k in second.keys} == set(thin[1:])
        assert sorted(m.reward or 0.0 for m in second.members) == [0.5, 1.0]
        assert groups.reopen(session, first, Settlement(verdict=Verdict.STALE, reason="old"))
        assert not groups.reopen(session, first, Settlement(verdict=Verdict.STALE, reason="again"))
        assert not groups.reopen(session, second, Settlement(verdict=Verdict.READY, reason="it still does"))

    assert world.states([*old, *new]) == ["STALE", "STALE", "READY", "READY"]
    assert world.column('SELECT state FROM groups ORDER BY "index"') == ["STALE", "READY", "READY"]
