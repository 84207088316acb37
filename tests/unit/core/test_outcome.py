"""The outcome table is closed and total, and no fault of the platform ever votes."""

import pytest

from tiltyard.core.outcome import RULINGS, Charge, Outcome, ruling

PLATFORM = frozenset(
    {
        Outcome.SANDBOX_FAILED,
        Outcome.STARVED,
        Outcome.RUNNER_LOST,
        Outcome.INFERENCE_FAILED,
        Outcome.ARTIFACT_FAILED,
        Outcome.VERIFIER_BROKEN,
        Outcome.GRADER_FAILED,
        Outcome.JUDGE_UNPARSEABLE,
        Outcome.PREEMPTED,
        Outcome.CANCELLED,
        Outcome.UNKNOWN,
    }
)
POLICY = frozenset(Outcome) - PLATFORM


def test_the_table_holds_every_outcome_and_nothing_else() -> None:
    assert set(RULINGS) == set(Outcome)


@pytest.mark.parametrize("outcome", sorted(PLATFORM))
def test_no_fault_of_the_platform_is_valid(outcome: Outcome) -> None:
    assert not ruling(outcome).valid


@pytest.mark.parametrize("outcome", sorted(POLICY))
def test_a_policys_own_end_votes_and_is_never_retried(outcome: Outcome) -> None:
    assert ruling(outcome).valid
    assert ruling(outcome).charge is Charge.NOTHING


@pytest.mark.parametrize("outcome", sorted(Outcome))
def test_every_ruling_states_its_reason(outcome: Outcome) -> None:
    assert ruling(outcome).reason


@pytest.mark.parametrize("charge", [Charge.INFRASTRUCTURE, Charge.GRADER, Charge.PREEMPTION])
def test_whatever_is_retried_is_invalid(charge: Charge) -> None:
    charged = [o for o in Outcome if ruling(o).charge is charge]

    assert charged
    assert not any(ruling(o).valid for o in charged)


def test_only_a_withdrawn_attempt_is_invalid_and_not_retried() -> None:
    final = {o for o in Outcome if not ruling(o).valid and ruling(o).charge is Charge.NOTHING}

    assert final == {Outcome.CANCELLED}


def test_what_is_not_understood_does_not_vote() -> None:
    assert not ruling(Outcome.UNKNOWN).valid


def test_a_kind_outside_of_the_table_cannot_exist() -> None:
    with pytest.raises(ValueError, match="exploded"):
        Outcome("exploded")
