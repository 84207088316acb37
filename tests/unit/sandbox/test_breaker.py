"""When no more boxes are lent, and when it is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.sandbox.breaker import Breaker, BreakerPolicy, BreakerState
from tiltyard.sandbox.errors import NodeUnhealthy, SandboxUnavailable

POLICY = BreakerPolicy(
    window_seconds=30,
    least=6,
    failed_share=0.5,
    rest_seconds=5,
    most_rest_seconds=15,
    pressure={"memory": 60, "io": 90},
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(POLICY, clock=clock)


def refused(breaker: Breaker) -> NodeUnhealthy:
    with pytest.raises(NodeUnhealthy) as refusal:
        breaker.admit()
    return refusal.value


def test_few_failures_and_a_small_share_of_many_open_nothing(breaker: Breaker) -> None:
    breaker.used(well=0, failed=5)
    breaker.admit()
    breaker.used(well=7, failed=0)
    breaker.used(well=0, failed=1)
    breaker.made(well=100, failed=99)
    breaker.admit()
    assert breaker.report().state is BreakerState.closed


def test_too_many_failures_refuse_with_the_reason_and_when_it_is_tried_again(
    breaker: Breaker, clock: Clock
) -> None:
    breaker.made(well=2, failed=4)
    refusal = refused(breaker)
    assert isinstance(refusal, SandboxUnavailable)
    assert (refusal.reason, refusal.retry_after) == ("4 of the last 6 boxes could not be made", 5)
    clock.now += 3
    assert refused(breaker).retry_after == pytest.approx(2)
    report = breaker.report()
    assert (report.state, report.since, report.failed, report.succeeded) == (BreakerState.open, 1000, 4, 2)


def test_boxes_that_were_made_do_not_hide_those_that_failed_when_used(breaker: Breaker) -> None:
    breaker.made(well=1000, failed=0)
    breaker.used(well=0, failed=6)
    assert refused(breaker).reason == "6 of the last 6 boxes failed their commands"


def test_failures_are_forgotten_after_the_window(breaker: Breaker, clock: Clock) -> None:
    breaker.used(well=0, failed=5)
    clock.now += 32
    breaker.used(well=0, failed=5)
    breaker.admit()
    assert breaker.report().failed == 5


def test_after_its_rest_one_is_lent_and_others_wait_for_how_it_goes(breaker: Breaker, clock: Clock) -> None:
    breaker.used(well=0, failed=6)
    clock.now += 5
    assert breaker.state is BreakerState.half_open
    breaker.admit()
    assert refused(breaker).retry_after > 0
    breaker.used(well=1, failed=0)
    breaker.admit()
    breaker.admit()
    report = breaker.report()
    assert (report.state, report.since, report.reason, report.failed) == (BreakerState.closed, None, "", 0)


def test_a_try_that_fails_doubles_the_rest_up_to_the_longest(breaker: Breaker, clock: Clock) -> None:
    breaker.used(well=0, failed=6)
    for rest in (5, 10, 15, 15):
        assert refused(breaker).retry_after == pytest.approx(rest)
        clock.now += rest
        breaker.admit()
        breaker.used(well=0, failed=1)
    assert breaker.report().since == 1000, "it says since when, not when it was last tried"
    clock.now += 15
    breaker.admit()
    breaker.used(well=1, failed=0)
    breaker.used(well=0, failed=6)
    assert refused(breaker).retry_after == 5, "once it went well the rest is short again"


def test_who_got_no_box_leaves_the_try_to_the_next(breaker: Breaker, clock: Clock) -> None:
    breaker.used(well=0, failed=6)
    clock.now += 5
    breaker.admit()
    breaker.withdraw()
    breaker.admit()


def test_a_try_that_does_not_come_back_keeps_others_waiting_for_one_rest(
    breaker: Breaker, clock: Clock
) -> None:
    breaker.used(well=0, failed=6)
    clock.now += 5
    breaker.admit()
    clock.now += 4
    refused(breaker)
    clock.now += 1
    breaker.admit()
    refused(breaker)


def test_boxes_that_cannot_be_made_end_a_try_too(breaker: Breaker, clock: Clock) -> None:
    breaker.made(well=0, failed=6)
    clock.now += 5
    breaker.made(well=1, failed=0)
    assert breaker.state is BreakerState.half_open, "what a box is good for is seen when it is used"
    breaker.made(well=0, failed=1)
    assert refused(breaker).retry_after == 10


def test_pressure_opens_it_and_lets_go_only_when_it_has_eased(breaker: Breaker) -> None:
    breaker.press({"memory": 59.9, "cpu": 100.0})
    breaker.admit()
    breaker.press({"memory": 60.0})
    assert refused(breaker).reason == "memory pressure 60 %"
    breaker.press({"memory": 49.0})
    assert refused(breaker).reason == "memory pressure 49 %"
    breaker.press({"memory": 47.0})
    breaker.admit()
    assert breaker.report().since is None


def test_both_reasons_are_told_and_each_holds_alone(breaker: Breaker, clock: Clock) -> None:
    breaker.used(well=0, failed=6)
    breaker.press({"io": 95.0})
    assert refused(breaker).reason == "6 of the last 6 boxes failed their commands; io pressure 95 %"
    clock.now += 5
    assert refused(breaker).retry_after == 1
    breaker.press({})
    breaker.admit()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("used"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("made"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("wait"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("press"), st.integers(0, 100), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_it_refuses_just_when_it_says_that_it_is_not_closed_and_always_ends(
    steps: list[tuple[str, int, int]],
) -> None:
    clock = Clock()
    breaker = Breaker(POLICY, clock=clock)
    for what, first, second in steps:
        if what == "wait":
            clock.now += first
        elif what == "press":
            breaker.press({"memory": float(first)})
        else:
            getattr(breaker, what)(well=first, failed=second)
        report = breaker.report()
        assert (report.since is None) == (report.state is BreakerState.closed) == (report.reason == "")
        if report.state is BreakerState.open:
            assert refused(breaker).retry_after == report.retry_in > 0
    breaker.press({})
    clock.now += 15
    breaker.admit()
    breaker.used(well=1, failed=0)
    assert breaker.state is BreakerState.closed
