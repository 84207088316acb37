"""Settling: an invalid member never sways the verdict, and nobody waits past the deadline."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.group import GroupRules, Member, Settlement, Verdict, is_stale, settle
from tiltyard.core.rollout import IN_FLIGHT, TERMINAL, State

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(seconds=1), NOW - timedelta(seconds=1)
TRAINS = GroupRules(trains=True)
EVALUATES = GroupRules(trains=False)

scored = st.builds(
    Member,
    state=st.just(State.SCORED),
    reward=st.floats(0, 1),
    oldest_version=st.none() | st.integers(0, 10),
)
absent = st.builds(Member, state=st.sampled_from(sorted(TERMINAL)), oldest_version=st.integers(0, 10))
waiting = st.builds(Member, state=st.sampled_from(sorted(IN_FLIGHT)))
rules = st.builds(
    GroupRules, trains=st.booleans(), min_valid=st.integers(2, 6), max_staleness=st.integers(0, 4)
)


def _settle(
    members: list[Member], given_rules: GroupRules = TRAINS, *, version: int = 3, deadline: datetime = LATER
) -> Settlement:
    return settle(members, given_rules, version=version, deadline=deadline, now=NOW)


def _scored(*rewards: float, version: int | None = 3) -> list[Member]:
    return [Member(state=State.SCORED, reward=r, oldest_version=version) for r in rewards]


@given(st.data(), st.lists(scored | absent | waiting, max_size=8), rules, st.integers(0, 12), st.booleans())
def test_the_order_of_members_changes_nothing(
    data: st.DataObject, members: list[Member], given_rules: GroupRules, version: int, late: bool
) -> None:
    deadline = EARLIER if late else LATER
    shuffled = data.draw(st.permutations(members))

    assert _settle(shuffled, given_rules, version=version, deadline=deadline) == _settle(
        members, given_rules, version=version, deadline=deadline
    )


@given(st.lists(scored, max_size=8), st.lists(absent, min_size=1, max_size=8), rules, st.integers(0, 12))
def test_an_invalid_member_never_changes_the_verdict_on_the_others(
    members: list[Member], invalid: list[Member], given_rules: GroupRules, version: int
) -> None:
    alone = _settle(members, given_rules, version=version)

    assert _settle([*members, *invalid], given_rules, version=version) == alone


@given(st.lists(scored | absent, max_size=8), st.lists(waiting, min_size=1, max_size=8), rules)
def test_a_group_waits_for_its_members_until_the_deadline(
    members: list[Member], missing: list[Member], given_rules: GroupRules
) -> None:
    everyone = [*members, *missing]

    assert _settle(everyone, given_rules, deadline=LATER).verdict is Verdict.WAIT
    assert _settle(everyone, given_rules, deadline=NOW) == _settle(members, given_rules)


@given(st.lists(scored | absent, max_size=8), rules, st.booleans())
def test_a_group_whose_members_have_all_ended_never_waits(
    members: list[Member], given_rules: GroupRules, late: bool
) -> None:
    assert _settle(members, given_rules, deadline=EARLIER if late else LATER).verdict is not Verdict.WAIT


@given(st.lists(scored | absent, max_size=8), rules, st.integers(0, 12))
def test_what_is_ready_carries_gradient_and_is_fresh(
    members: list[Member], given_rules: GroupRules, version: int
) -> None:
    voters = [m for m in members if m.state is State.SCORED]
    if _settle(members, given_rules, version=version).verdict is not Verdict.READY:
        return
    assert given_rules.trains
    assert len(voters) >= given_rules.min_valid
    assert len({m.reward for m in voters}) > 1
    assert all(
        m.oldest_version is None or version - m.oldest_version <= given_rules.max_staleness for m in voters
    )


@given(st.lists(scored | absent, max_size=8))
def test_a_group_of_an_evaluation_is_only_counted(members: list[Member]) -> None:
    assert _settle(members, EVALUATES).verdict is Verdict.EVALUATED


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [([], "too_few_valid"), ([1.0], "too_few_valid"), ([0.0] * 4, "all_failed"), ([0.5] * 4, "zero_spread")],
)
def test_a_group_without_gradient_is_filtered_with_its_reason(rewards: list[float], reason: str) -> None:
    assert _settle(_scored(*rewards)) == Settlement(verdict=Verdict.FILTERED, reason=reason)


def test_too_few_valid_members_filter_a_group_by_the_rules_of_its_run() -> None:
    members = _scored(0.0, 1.0, 1.0)

    assert _settle(members, GroupRules(trains=True, min_valid=3)).verdict is Verdict.READY
    assert _settle(members, GroupRules(trains=True, min_valid=4)).reason == "too_few_valid"


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 4))
def test_a_group_is_stale_beyond_the_allowed_lag_and_not_at_it(
    oldest: int, newest: int, allowed: int
) -> None:
    members = [*_scored(0.0, version=oldest), *_scored(1.0, version=oldest + 5)]
    verdict = _settle(members, GroupRules(trains=True, max_staleness=allowed), version=newest).verdict

    assert verdict is (Verdict.STALE if newest - oldest > allowed else Verdict.READY)


def test_the_oldest_tokens_of_an_invalid_member_age_nobody() -> None:
    members = [*_scored(0.0, 1.0), Member(state=State.INVALID, oldest_version=0)]

    assert _settle(members, version=3).verdict is Verdict.READY


def test_tokens_of_unknown_version_are_not_stale() -> None:
    assert not is_stale([], version=9, max_staleness=0)
    assert not is_stale([None, None], version=9, max_staleness=0)
    assert is_stale([None, 8], version=9, max_staleness=0)
