"""The state table on real rows: every row of it moves, and nothing else does."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.integration.store.world import World
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import MOVES, Actor, IllegalMove, State
from tiltyard.store.moves import Key, Moved, end_attempts, keys_where, move

ROWS = [(start, end, actor) for (start, end), row in MOVES.items() for actor in sorted(row.actors)]


@pytest.fixture(scope="module")
def run(shared: World) -> str:
    return shared.train()


def _move(world: World, key: Key, end: State, actor: Actor, **options: object) -> list[Moved]:
    with world.work() as session:
        return move(session, [key], end, actor=actor, **options)  # type: ignore[arg-type]


def _transitions(world: World, rollout: str) -> list[tuple[str | None, str, int, str]]:
    with world.work() as session:
        rows = session.execute(
            text('SELECT start, "end", fence, actor FROM transitions WHERE rollout_id = :id ORDER BY seq'),
            {"id": rollout},
        )
        return [(r.start, r.end, r.fence, r.actor) for r in rows]


@pytest.mark.parametrize(("start", "end", "actor"), ROWS)
def test_a_row_of_the_state_table_moves_a_rollout(
    shared: World, run: str, start: State, end: State, actor: Actor
) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.walk(rollout, start)
    fence = key.fence + MOVES[start, end].raises_fence(actor)

    (moved,) = _move(shared, key, end, actor, reason="why")

    assert (moved.rollout_id, moved.fence, moved.run_id) == (rollout, fence, run)
    assert (shared.state(rollout), shared.row(rollout).fence) == (end, fence)
    assert _transitions(shared, rollout)[-1] == (start, end, fence, actor)


@pytest.mark.parametrize("start", list(State))
def test_a_move_that_the_table_does_not_hold_writes_nothing(shared: World, run: str, start: State) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.walk(rollout, start)
    before = _transitions(shared, rollout)

    for end, actor in product(State, Actor):
        row = MOVES.get((start, end))
        if row is None or actor not in row.actors:
            with pytest.raises(IllegalMove):
                _move(shared, key, end, actor, only_from=[start])

    assert shared.key(rollout) == key
    assert shared.state(rollout) == start
    assert _transitions(shared, rollout) == before


@pytest.mark.parametrize("start", list(State))
def test_a_state_from_which_an_actor_moves_nothing_stays(shared: World, run: str, start: State) -> None:
    """Without `only_from` the statement's own condition has to refuse."""
    (rollout,) = shared.group(run, 1)
    key = shared.walk(rollout, start)

    for end, actor in product(State, Actor):
        elsewhere = any(b is end and actor in row.actors for (_, b), row in MOVES.items())
        here = MOVES.get((start, end))
        if elsewhere and (here is None or actor not in here.actors):
            assert _move(shared, key, end, actor) == []

    assert (shared.key(rollout), shared.state(rollout)) == (key, start)


@pytest.mark.parametrize("start", sorted({start for start, *_ in ROWS}))
def test_a_wrong_fence_moves_nothing(shared: World, run: str, start: State) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.walk(rollout, start)

    for (_, end, actor), off in product([r for r in ROWS if r[0] is start], (-1, 1)):
        assert _move(shared, Key(rollout_id=rollout, fence=key.fence + off), end, actor) == []
    assert (shared.key(rollout), shared.state(rollout)) == (key, start)


def test_only_those_whose_key_holds_are_moved(shared: World, run: str) -> None:
    first, second = shared.group(run, 2)
    keys = [shared.key(first), Key(rollout_id=second, fence=7), Key(rollout_id="nobody", fence=0)]

    with shared.work() as session:
        moved = move(session, keys, State.CANCELLED, actor=Actor.REGISTRY)

    assert [m.rollout_id for m in moved] == [first]
    assert shared.states([first, second]) == ["CANCELLED", "QUEUED"]


def test_a_rollout_named_twice_moves_once(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.key(rollout)

    with shared.work() as session:
        move(session, [key, key], State.CANCELLED, actor=Actor.REGISTRY)

    assert [t[1] for t in _transitions(shared, rollout)] == ["QUEUED", "CANCELLED"]


def test_transitions_chain_from_being_planned_to_the_end(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)
    shared.walk(rollout, State.TRAINED)
    chain = _transitions(shared, rollout)

    assert [(start, end) for start, end, *_ in chain] == [
        (None, "QUEUED"),
        ("QUEUED", "GRANTED"),
        ("GRANTED", "RUNNING"),
        ("RUNNING", "PRODUCED"),
        ("PRODUCED", "SCORED"),
        ("SCORED", "READY"),
        ("READY", "TRAINING"),
        ("TRAINING", "TRAINED"),
    ]
    assert shared.row(rollout).seq == len(chain)


def test_a_move_that_is_rolled_back_leaves_no_transition(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.key(rollout)

    with shared.work() as session:
        assert move(session, [key], State.CANCELLED, actor=Actor.REGISTRY)
        session.rollback()

    assert shared.state(rollout) == "QUEUED"
    assert len(_transitions(shared, rollout)) == 1


def test_of_many_that_move_one_rollout_at_once_one_does(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.key(rollout)

    with ThreadPoolExecutor(4) as pool:
        ends = [State.CANCELLED, State.EXPIRED] * 4
        answers = list(pool.map(lambda end: _move(shared, key, end, Actor.DISPATCHER), ends))

    assert sum(map(len, answers)) == 1
    assert len(_transitions(shared, rollout)) == 2


def test_an_unknown_state_cannot_be_written(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)

    with pytest.raises(IntegrityError, match="ck_rollouts_state"):
        shared.sql("UPDATE rollouts SET state = 'LOST' WHERE id = :id", id=rollout)


def test_nothing_to_move_is_fine_but_an_impossible_move_is_not(shared: World) -> None:
    with shared.work() as session:
        assert move(session, [], State.CANCELLED, actor=Actor.REGISTRY) == []
        with pytest.raises(IllegalMove, match="trainer moves nothing to GRANTED"):
            move(session, [], State.GRANTED, actor=Actor.TRAINER)


def test_a_long_reason_is_cut_and_not_refused(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)

    _move(shared, shared.key(rollout), State.CANCELLED, Actor.REGISTRY, reason="x" * 100_000)

    assert (
        shared.value("SELECT length(reason) FROM transitions WHERE rollout_id = :r AND seq = 2", r=rollout)
        == 2_000
    )


def test_keys_come_oldest_first(shared: World, run: str) -> None:
    ids = shared.group(run, 5)

    with shared.work() as session:
        keys = keys_where(session, "r.id = ANY(:ids)", {"ids": ids}, lock=True)

    assert [k.rollout_id for k in keys] == sorted(ids)


def test_closing_attempts_leaves_ended_ones_as_they_were(shared: World, run: str) -> None:
    (rollout,) = shared.group(run, 1)
    key = shared.walk(rollout, State.RUNNING)
    shared.produce([key])

    with shared.work() as session:
        end_attempts(session, [key], Outcome.UNKNOWN, "late")

    assert shared.value("SELECT outcome FROM attempts WHERE rollout_id = :r", r=rollout) == "completed"
