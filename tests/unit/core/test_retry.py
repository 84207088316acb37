"""Retries: budgets are separate, and the wait is bounded."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.outcome import Charge
from tiltyard.core.retry import FIRST_WAIT, LONGEST_WAIT, Again, Budgets, Spent, backoff, retry

failures = st.integers(1, 10_000)
jitters = st.floats(0, 1, exclude_max=True)
budgets = st.builds(Budgets, infrastructure=st.integers(0, 20), grader=st.integers(0, 20))


@given(failures, jitters)
def test_a_wait_is_never_longer_than_the_longest(number: int, jitter: float) -> None:
    assert timedelta() <= backoff(number, jitter=jitter) <= LONGEST_WAIT


@given(st.integers(1, 30), jitters)
def test_waits_do_not_shrink_as_failures_mount(number: int, jitter: float) -> None:
    assert backoff(number, jitter=jitter) <= backoff(number + 1, jitter=jitter)


@pytest.mark.parametrize(("number", "seconds"), [(1, 0.5), (2, 1), (3, 2), (6, 16), (7, 30), (5_000, 30)])
def test_the_ceiling_doubles_from_the_first_wait(number: int, seconds: float) -> None:
    assert backoff(number, jitter=0.5) == timedelta(seconds=seconds / 2)
    assert timedelta(seconds=0.5) == FIRST_WAIT


@given(failures, budgets, jitters)
def test_infrastructure_is_retried_within_its_own_budget(
    number: int, given_budgets: Budgets, jitter: float
) -> None:
    decision = retry(Charge.INFRASTRUCTURE, failures=number, budgets=given_budgets, jitter=jitter)

    assert isinstance(decision, Again if number <= given_budgets.infrastructure else Spent)


@given(failures, budgets, jitters)
def test_a_grader_is_retried_within_its_own_budget(
    number: int, given_budgets: Budgets, jitter: float
) -> None:
    decision = retry(Charge.GRADER, failures=number, budgets=given_budgets, jitter=jitter)

    assert isinstance(decision, Again if number <= given_budgets.grader else Spent)


@given(failures, st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), jitters)
def test_one_budget_never_sways_the_other(number: int, own: int, one: int, two: int, jitter: float) -> None:
    def infrastructure(grader: int) -> Again | Spent:
        given_budgets = Budgets(infrastructure=own, grader=grader)
        return retry(Charge.INFRASTRUCTURE, failures=number, budgets=given_budgets, jitter=jitter)

    def grader(infrastructure: int) -> Again | Spent:
        given_budgets = Budgets(infrastructure=infrastructure, grader=own)
        return retry(Charge.GRADER, failures=number, budgets=given_budgets, jitter=jitter)

    assert infrastructure(one) == infrastructure(two)
    assert grader(one) == grader(two)


@given(failures, budgets, jitters)
def test_preemption_is_always_forgiven_at_once(number: int, given_budgets: Budgets, jitter: float) -> None:
    decision = retry(Charge.PREEMPTION, failures=number, budgets=given_budgets, jitter=jitter)

    assert decision == Again(after=timedelta())


@given(failures, budgets, jitters)
def test_what_is_charged_to_nobody_is_never_retried(
    number: int, given_budgets: Budgets, jitter: float
) -> None:
    assert isinstance(retry(Charge.NOTHING, failures=number, budgets=given_budgets, jitter=jitter), Spent)


def test_a_spent_budget_says_which_and_how_large_it_was() -> None:
    decision = retry(Charge.INFRASTRUCTURE, failures=3, budgets=Budgets(infrastructure=2), jitter=0)

    assert decision == Spent(reason="the infrastructure budget of 2 retries is spent")
