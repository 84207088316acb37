"""The state table: what is not in it does not exist."""

from itertools import product

import pytest

from tiltyard.core.rollout import (
    ABOARD,
    IN_FLIGHT,
    LIVING,
    MOVES,
    TERMINAL,
    Actor,
    IllegalMove,
    State,
    move_between,
    sources,
)

HOLDER = {
    State.RUNNING: Actor.RUNNER,
    State.PREEMPTING: Actor.RUNNER,
    State.CANCELLING: Actor.RUNNER,
    State.PRODUCED: Actor.EVALUATOR,
    State.TRAINING: Actor.TRAINER,
}
"""Who works on a rollout in these states, and so would be surprised by another's move."""
REDRIVES = frozenset({State.INVALID, State.FAILED, State.DEAD, State.EXPIRED})


@pytest.mark.parametrize(("start", "end"), list(product(State, State)))
def test_a_move_exists_only_if_the_table_holds_it(start: State, end: State) -> None:
    row = MOVES.get((start, end))
    for actor in Actor:
        if row is not None and actor in row.actors:
            assert move_between(start, end, actor) is row
        else:
            with pytest.raises(IllegalMove, match=f"{start} → {end}"):
                move_between(start, end, actor)


@pytest.mark.parametrize(("end", "actor"), list(product(State, Actor)))
def test_sources_are_exactly_the_rows_that_end_there(end: State, actor: Actor) -> None:
    rows = {start for (start, at), row in MOVES.items() if at is end and actor in row.actors}
    if rows:
        assert sources(end, actor) == rows
    else:
        with pytest.raises(IllegalMove, match=f"{actor} moves nothing to {end}"):
            sources(end, actor)


def test_an_illegal_move_names_what_would_be_legal() -> None:
    with pytest.raises(IllegalMove, match="from QUEUED: CANCELLED, EXPIRED, GRANTED"):
        move_between(State.QUEUED, State.TRAINED, Actor.TRAINER)
    with pytest.raises(IllegalMove, match=r"made by dispatcher, not by runner"):
        move_between(State.QUEUED, State.GRANTED, Actor.RUNNER)
    with pytest.raises(IllegalMove, match=r"from TRAINED: nothing"):
        move_between(State.TRAINED, State.QUEUED, Actor.REGISTRY)


def test_only_actors_that_may_make_a_move_hold_it() -> None:
    assert all(row.holders <= row.actors for row in MOVES.values())
    assert all(row.actors for row in MOVES.values())


@pytest.mark.parametrize(("start", "end"), [pair for pair in MOVES if pair[0] in HOLDER])
def test_taking_a_rollout_from_its_holder_raises_the_fence(start: State, end: State) -> None:
    asks_only = end in {State.PREEMPTING, State.CANCELLING}
    row = MOVES[start, end]

    for actor in row.actors - {HOLDER[start]}:
        assert row.raises_fence(actor) is not asks_only
    if HOLDER[start] in row.actors:
        assert not row.raises_fence(HOLDER[start])


def test_every_grant_is_a_new_fence() -> None:
    assert MOVES[State.QUEUED, State.GRANTED].raises_fence(Actor.DISPATCHER)


def test_a_redrive_is_a_new_fence_and_the_only_way_out_of_an_end() -> None:
    out_of_ends = {pair: row for pair, row in MOVES.items() if pair[0] in TERMINAL}

    assert set(out_of_ends) == {(state, State.QUEUED) for state in REDRIVES}
    assert all(row.raises_fence(actor) for row in out_of_ends.values() for actor in row.actors)
    assert all(row.actors == {Actor.REGISTRY} for row in out_of_ends.values())


@pytest.mark.parametrize("state", sorted(LIVING))
def test_every_living_state_can_be_cancelled_by_a_person_and_by_the_dispatcher(state: State) -> None:
    if state is State.CANCELLING:
        assert MOVES[state, State.CANCELLED].actors == {Actor.RUNNER, Actor.DISPATCHER}
        return
    end = State.CANCELLING if state is State.RUNNING else State.CANCELLED

    assert {Actor.DISPATCHER, Actor.REGISTRY} <= MOVES[state, end].actors


@pytest.mark.parametrize("state", sorted(LIVING))
def test_every_living_state_leads_to_an_end(state: State) -> None:
    assert _reachable(state) & TERMINAL


@pytest.mark.parametrize("state", sorted(set(State) - {State.QUEUED}))
def test_every_state_is_reached_from_being_planned(state: State) -> None:
    assert state in _reachable(State.QUEUED)


@pytest.mark.parametrize(
    ("end", "starts"),
    [
        (State.TRAINED, {State.TRAINING}),
        (State.EVALUATED, {State.SCORED}),
        (State.FILTERED, {State.SCORED, State.READY}),
        (State.STALE, {State.SCORED, State.READY}),
        (State.INVALID, {State.PRODUCED}),
        (State.FAILED, {State.RUNNING}),
        (State.DEAD, {State.RUNNING}),
        (State.EXPIRED, {State.QUEUED}),
        (State.CANCELLED, LIVING - {State.RUNNING}),
        (State.SCORED, {State.PRODUCED}),
        (State.TRAINING, {State.READY}),
    ],
)
def test_a_state_is_entered_only_from_where_it_may_be(end: State, starts: set[State]) -> None:
    assert {a for a, b in MOVES if b is end} == starts


def test_a_rollout_is_never_scored_again_for_a_graders_fault() -> None:
    assert (State.PRODUCED, State.QUEUED) not in MOVES


def test_states_fall_into_living_and_ended() -> None:
    assert set(State) == LIVING | TERMINAL
    assert ABOARD < IN_FLIGHT < LIVING


def _reachable(start: State) -> set[State]:
    seen, frontier = {start}, [start]
    while frontier:
        state = frontier.pop()
        after = {b for a, b in MOVES if a is state} - seen
        seen |= after
        frontier += after
    return seen - {start}
