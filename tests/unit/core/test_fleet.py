"""The fleet: silence is judged by trusted time alone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.capacity import Capacity
from tiltyard.core.fleet import RECOVERY_GRACE, SILENT_AFTER, AfterLoss, Runner, after_loss, given_up

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
TICK = timedelta(microseconds=1)


def _runner(name: str = "a", *, silent: timedelta = timedelta()) -> Runner:
    return Runner(incarnation=name, last_heartbeat=NOW - silent, capacity=Capacity(slots=4))


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
