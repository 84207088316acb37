"""Leases: of two holders at most one is current."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.lease import Lease, acquire

START = datetime(2026, 1, 1, tzinfo=UTC)
TERM = timedelta(seconds=10)
asks = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 15)), max_size=20)


@given(asks)
def test_at_most_one_holder_is_current_at_any_time(given_asks: list[tuple[str, int]]) -> None:
    lease, now = None, START
    for holder, passed in given_asks:
        now += timedelta(seconds=passed)
        before = lease
        granted = acquire(lease, holder=holder, now=now, term=TERM)
        if granted is None:
            assert before is not None
            assert before.holder != holder
            assert before.current(now=now)
            continue
        assert before is None or before.holder == holder or not before.current(now=now)
        lease = granted


@given(asks)
def test_the_number_never_falls_and_rises_with_each_acquisition(given_asks: list[tuple[str, int]]) -> None:
    lease, now = None, START
    for holder, passed in given_asks:
        now += timedelta(seconds=passed)
        granted = acquire(lease, holder=holder, now=now, term=TERM)
        if granted is not None and lease is not None:
            renewed = lease.holder == holder and lease.current(now=now)
            assert granted.number == lease.number + (0 if renewed else 1)
        lease = granted or lease


def test_the_first_holder_gets_number_one() -> None:
    assert acquire(None, holder="a", now=START, term=TERM) == Lease(holder="a", number=1, until=START + TERM)


def test_a_lease_ends_at_its_end_and_not_before() -> None:
    lease = Lease(holder="a", number=1, until=START + TERM)

    assert lease.current(now=START + TERM - timedelta(microseconds=1))
    assert not lease.current(now=START + TERM)


def test_a_holder_whose_lease_ran_out_comes_back_under_a_new_number() -> None:
    lease = Lease(holder="a", number=4, until=START)

    assert acquire(lease, holder="a", now=START, term=TERM) == Lease(holder="a", number=5, until=START + TERM)
