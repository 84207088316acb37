"""The fleet: silence is judged by trusted time alone, and a grant never exceeds what is free."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.fleet import RECOVERY_GRACE, SILENT_AFTER, AfterLoss, Runner, after_loss, allot, given_up

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
TICK = timedelta(microseconds=1)


def _runner(name: str = "a", *, silent: timedelta = timedelta(), slots: int = 4, aboard: int = 0) -> Runner:
    return Runner(incarnation=name, last_heartbeat=NOW - silent, slots=slots, aboard=aboard)


@given(st.lists(st.integers(0, 1_000_000)), st.integers(0, 59))
def test_nobody_is_given_up_within_the_grace(silences: list[int], trusted_for: int) -> None:
    runners = [_runner(str(i), silent=timedelta(seconds=s)) for i, s in enumerate(silences)]

    assert given_up(runners, now=NOW, trusted_since=NOW - timedelta(seconds=trusted_for)) == []


@given(st.lists(st.integers(0, 100)))
def test_exactly_the_silent_are_given_up(silences: list[int]) -> None:
    runners = [_runner(str(i), silent=timedelta(seconds=s)) for i, s in enumerate(silences)]
    silent = {str(i) for i, s in enumerate(silences) if timedelta(seconds=s) > SILENT_AFTER}

    lost = given_up(runners, now=NOW, trusted_since=LONG_AGO)

    assert {g.incarnation for g in lost} == silent
    assert all(g.silent_for > SILENT_AFTER for g in lost)


def test_silence_and_grace_end_where_they_say() -> None:
    quiet, lost = _runner(silent=SILENT_AFTER), _runner(silent=SILENT_AFTER + TICK)

    assert given_up([quiet], now=NOW, trusted_since=LONG_AGO) == []
    assert given_up([lost], now=NOW, trusted_since=NOW - RECOVERY_GRACE + TICK) == []
    assert len(given_up([lost], now=NOW, trusted_since=NOW - RECOVERY_GRACE)) == 1


def test_a_heartbeat_from_the_future_is_not_silence() -> None:
    assert given_up([_runner(silent=timedelta(seconds=-90))], now=NOW, trusted_since=LONG_AGO) == []


@pytest.mark.parametrize(
    ("losses", "alone", "fate"),
    [
        (1, False, AfterLoss.REQUEUE),
        (2, False, AfterLoss.REQUEUE_ALONE),
        (3, False, AfterLoss.REQUEUE_ALONE),
        (3, True, AfterLoss.DEAD),
        (1, True, AfterLoss.DEAD),
    ],
)
def test_a_rollout_is_dead_only_when_its_runner_died_under_it_alone(
    losses: int, alone: bool, fate: AfterLoss
) -> None:
    assert after_loss(losses=losses, was_alone_by_order=alone) is fate


runners = st.lists(
    st.builds(
        Runner,
        incarnation=st.uuids().map(str),
        last_heartbeat=st.just(NOW),
        slots=st.integers(0, 6),
        aboard=st.integers(0, 8),
        draining=st.booleans(),
        lonely=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda r: r.incarnation,
)
queues = st.lists(st.booleans(), max_size=20).map(lambda alone: [(f"r{i}", a) for i, a in enumerate(alone)])


@given(queues, runners)
def test_grants_never_exceed_the_free_slots(queue: list[tuple[str, bool]], fleet: list[Runner]) -> None:
    by_name = {r.incarnation: r for r in fleet}

    for incarnation, granted in allot(queue, fleet).items():
        runner = by_name[incarnation]
        assert not runner.draining
        assert runner.aboard + len(granted) <= runner.slots


@given(queues, runners)
def test_a_lonely_rollout_is_alone_on_its_runner(queue: list[tuple[str, bool]], fleet: list[Runner]) -> None:
    by_name, alone = {r.incarnation: r for r in fleet}, dict(queue)

    for incarnation, granted in allot(queue, fleet).items():
        runner = by_name[incarnation]
        assert not runner.lonely
        if any(alone[rollout] for rollout in granted):
            assert len(granted) == 1
            assert runner.aboard == 0


@given(queues, runners)
def test_nothing_is_granted_twice(queue: list[tuple[str, bool]], fleet: list[Runner]) -> None:
    granted = [rollout for rollouts in allot(queue, fleet).values() for rollout in rollouts]

    assert len(granted) == len(set(granted))
    assert set(granted) <= {rollout for rollout, _ in queue}


@given(st.integers(0, 20), runners)
def test_the_queue_is_served_in_its_order_as_far_as_there_is_room(waiting: int, fleet: list[Runner]) -> None:
    queue = [(f"r{i}", False) for i in range(waiting)]
    free = sum(r.free for r in fleet)

    granted = {rollout for rollouts in allot(queue, fleet).values() for rollout in rollouts}

    assert granted == {f"r{i}" for i in range(min(waiting, free))}


def test_work_is_spread_over_the_runners_with_most_room() -> None:
    fleet = [_runner("busy", slots=4, aboard=3), _runner("idle", slots=4), _runner("half", slots=4, aboard=2)]

    assert allot([(f"r{i}", False) for i in range(5)], fleet) == {
        "idle": ["r0", "r1", "r3"],
        "half": ["r2"],
        "busy": ["r4"],
    }


def test_a_lonely_rollout_that_finds_no_empty_runner_holds_nobody_up() -> None:
    assert allot([("lonely", True), ("r1", False)], [_runner(aboard=1)]) == {"a": ["r1"]}


def test_a_lonely_rollout_looks_past_an_empty_runner_without_slots() -> None:
    assert allot([("lonely", True)], [_runner("a", slots=0), _runner("b")]) == {"b": ["lonely"]}


def test_a_runner_that_hosts_a_lonely_rollout_gets_nothing_else() -> None:
    host = Runner(incarnation="a", last_heartbeat=NOW, slots=8, aboard=1, lonely=True)

    assert allot([("r1", False)], [host]) == {}
