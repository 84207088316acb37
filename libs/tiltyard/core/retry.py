"""Whether failed work is tried again, and when.

Guarantees: the budgets are separate: the infrastructure's failures never spend the grader's retries, and
preemption spends nothing.
Does not: draw the jitter; it is an argument."""

from dataclasses import dataclass
from datetime import timedelta

from tiltyard.core.outcome import Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How often each kind of failure is forgiven for one rollout."""

    infrastructure: int = 3
    grader: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Try again, not before `after` from now."""

    after: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Give up: the budget is spent, or the failure is never retried."""

    reason: str


FIRST_WAIT = timedelta(seconds=0.5)
LONGEST_WAIT = timedelta(seconds=30)


def backoff(failures: int, *, jitter: float) -> timedelta:
    """Exponential back-off with full jitter after `failures` ≥ 1 failures; `jitter` in [0, 1).

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015."""
    ceiling = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(max(failures, 1) - 1, 16))
    return ceiling * jitter


def retry(charge: Charge, *, failures: int, budgets: Budgets, jitter: float) -> Again | Spent:
    """What follows the failure number `failures` (≥ 1) on this charge."""
    if charge is Charge.PREEMPTION:
        return Again(after=timedelta())
    if charge is Charge.NOTHING:
        return Spent(reason="this failure is never retried")
    allowed = budgets.infrastructure if charge is Charge.INFRASTRUCTURE else budgets.grader
    if failures > allowed:
        return Spent(reason=f"the {charge} budget of {allowed} retries is spent")
    return Again(after=backoff(failures, jitter=jitter))
