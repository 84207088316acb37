"""The ledger on real rows: it balances through a run's life, and names every row that was tampered with."""

import pytest
from sqlalchemy.exc import IntegrityError

from tests.integration.store.world import TRACE, World
from tiltyard.core.group import Settlement, Verdict
from tiltyard.core.ledger import Discrepancy, reconcile
from tiltyard.store import groups, ledger, training
from tiltyard.store.training import Published


def _reconcile(
    world: World, run: str, manifests: dict[int, frozenset[str] | str] | None = None
) -> list[Discrepancy]:
    with world.work() as session:
        return reconcile(ledger.with_manifests(ledger.load(session, run), manifests or {}))


@pytest.fixture
def run(world: World) -> str:
    """Two groups trained in one step, one filtered, one still queued."""
    run = world.train()
    for rewards in ([0.0, 1.0], [1.0, 0.0]):
        world.scored(run, rewards)
    _close(world, run, Verdict.READY)
    with world.work() as session:
        leased = training.lease(session, "t1")
        assert leased is not None
        assert training.begin_step(session, run, leased.fence, groups=2, traceparent=TRACE) == 1
    assert _reconcile(world, run) == []
    with world.work() as session:
        training.commit_step(
            session,
            run,
            leased.fence,
            1,
            published=Published(version=1, prefix="p", files={}, checkpoint=True),
            manifest="m",
            metrics={},
        )
    world.scored(run, [0.0, 0.0])
    _close(world, run, Verdict.FILTERED)
    world.group(run)
    return run


def _close(world: World, run: str, verdict: Verdict) -> None:
    with world.work() as session:
        for group in groups.open_groups(session, run):
            groups.close(session, [(group, Settlement(verdict=verdict, reason="test"))])


TRAINED = "(SELECT min(id) FROM rollouts WHERE state = 'TRAINED')"
CHAIN = "transitions chain"
CORRUPTIONS = {
    "a group's row is gone": (
        "UPDATE runs SET groups_planned = groups_planned + 1 WHERE kind = 'train'",
        "groups planned = groups",
        "5 planned, 4 rows",
    ),
    "a rollout's row is gone": (
        "DELETE FROM transitions t USING rollouts r WHERE t.rollout_id = r.id AND r.state = 'QUEUED' AND"
        " r.member = 1; DELETE FROM rollouts WHERE state = 'QUEUED' AND member = 1",
        "groups × G planned = rollouts",
        "2 planned, 1 rollouts",
    ),
    "a rollout was added": (
        "INSERT INTO rollouts (id, run_id, group_id, version_id, member, seq, expires_at) SELECT 'odd',"
        " run_id, group_id, version_id, 9, 1, expires_at FROM rollouts WHERE state = 'QUEUED' AND member = 0;"
        ' INSERT INTO transitions (rollout_id, seq, "end", fence, actor)'
        " VALUES ('odd', 1, 'QUEUED', 0, 'x')",
        "groups × G planned = rollouts",
        "2 planned, 3 rollouts",
    ),
    "a transition is gone": (
        f"DELETE FROM transitions WHERE rollout_id = {TRAINED} AND seq = 4",
        CHAIN,
        "has transitions [1, 2, 3, 5, 6, 7, 8], its row counts 8",
    ),
    "a transition was added": (
        'INSERT INTO transitions (rollout_id, seq, start, "end", fence, actor) VALUES'
        f" ({TRAINED}, 9, 'TRAINED', 'QUEUED', 2, 'registry')",
        CHAIN,
        "its row counts 8",
    ),
    "a transition begins elsewhere": (
        f"UPDATE transitions SET start = 'GRANTED' WHERE rollout_id = {TRAINED} AND seq = 5",
        CHAIN,
        "transition 5 begins at GRANTED, but 4 ended at PRODUCED",
    ),
    "a transition is illegal": (
        f"UPDATE transitions SET start = 'PRODUCED' WHERE rollout_id = {TRAINED} AND seq = 6;"
        f" UPDATE transitions SET \"end\" = 'PRODUCED' WHERE rollout_id = {TRAINED} AND seq = 5",
        CHAIN,
        "illegal move",
    ),
    "a state was written past the moves": (
        f"UPDATE rollouts SET state = 'STALE' WHERE id = {TRAINED}",
        CHAIN,
        "its row says STALE",
    ),
    "a fence was written past the moves": (
        f"UPDATE rollouts SET fence = 7 WHERE id = {TRAINED}",
        CHAIN,
        "its row says TRAINED under 7",
    ),
    "an attempt is gone": (
        f"DELETE FROM attempts WHERE rollout_id = {TRAINED}",
        "each grant has its attempt",
        "granted under fences [1], attempts under []",
    ),
    "an attempt was never granted": (
        f"INSERT INTO attempts (rollout_id, fence, incarnation, traceparent) VALUES ({TRAINED}, 5, 'x', '')",
        "each grant has its attempt",
        "attempts under [1, 5]",
    ),
    "a selected grading is gone": (
        f"UPDATE gradings SET selected = false WHERE rollout_id = {TRAINED}",
        "a scored rollout has one selected grading",
        "is TRAINED with 0 selected gradings",
    ),
    "a step forgot a group": (
        "DELETE FROM step_groups WHERE position = 0",
        "a trained rollout stands in one committed step",
        "stands in 0 committed steps",
    ),
    "a step was not committed": (
        "UPDATE training_steps SET state = 'STARTED'",
        "a trained rollout stands in one committed step",
        "stands in 0 committed steps",
    ),
    "a step claims a group that was not trained": (
        "INSERT INTO step_groups SELECT run_id, 1, 7, id FROM groups WHERE state = 'FILTERED'",
        "a committed step trained its groups",
        "has no TRAINED rollout",
    ),
}


def test_a_run_balances_at_every_moment(world: World, run: str) -> None:
    assert _reconcile(world, run) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_tampered_row_is_named(world: World, run: str, name: str) -> None:
    statement, rule, detail = CORRUPTIONS[name]
    world.sql(statement)

    found = _reconcile(world, run)

    assert any(d.rule == rule and detail in d.detail for d in found), found
    assert all(d.row for d in found)


def test_other_runs_are_not_blamed(world: World, run: str) -> None:
    other = world.train()
    world.scored(other, [0.0, 1.0])
    world.sql("DELETE FROM attempts WHERE rollout_id IN (SELECT id FROM rollouts WHERE run_id = :r)", r=run)

    assert _reconcile(world, run)
    assert _reconcile(world, other) == []


def test_a_manifest_that_disagrees_is_named(world: World, run: str) -> None:
    trained = world.column("SELECT id FROM rollouts WHERE state = 'TRAINED'")

    assert _reconcile(world, run, {1: frozenset(trained)}) == []
    (odd,) = _reconcile(world, run, {1: frozenset(trained[1:])})
    assert (odd.rule, odd.row) == ("a step's manifest lists its rollouts", "step 1")
    assert trained[0] in odd.detail
    (lost,) = _reconcile(world, run, {1: "no such object: m"})
    assert lost.detail == "no such object: m"


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        (
            f"INSERT INTO gradings (id, rollout_id, fence, selected) VALUES ('odd', {TRAINED}, 1, true)",
            "uq_gradings_selected",
        ),
        (
            "INSERT INTO step_groups SELECT run_id, 2, 0, group_id FROM step_groups WHERE position = 0",
            "uq_step_groups_group_id",
        ),
        (
            f'INSERT INTO transitions SELECT rollout_id, seq, start, "end", fence, actor, reason, at'
            f" FROM transitions WHERE rollout_id = {TRAINED} AND seq = 1",
            "pk_transitions",
        ),
    ],
)
def test_what_would_double_a_record_is_refused_by_the_schema(
    world: World, run: str, statement: str, constraint: str
) -> None:
    with pytest.raises(IntegrityError, match=constraint):
        world.sql(statement)


def test_a_world_of_failures_and_retries_balances(world: World) -> None:
    run = world.train(rollouts={"infrastructure_retries": 1})
    ids = world.group(run, 4)
    for _ in range(3):
        waiting = [i for i in ids if world.state(i) == "QUEUED"]
        keys = world.aboard(waiting, world.join())
        for key in keys[1:]:
            world.fail(key)
        world.produce(keys[:1])

    assert _reconcile(world, run) == []
