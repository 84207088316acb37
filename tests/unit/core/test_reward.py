"""Rewards: gates first, then tiers, and an abstention is never a zero."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.reward import NoReward, Score, reward

values = st.floats(0, 1)
weights = st.floats(0.01, 100)
scores = st.builds(
    Score,
    component=st.just("c"),
    value=st.none() | values | st.just(1.0),
    weight=weights,
    gate=st.just(False),
    tier=st.integers(0, 3),
)


def _score(value: float | None, *, weight: float = 1.0, gate: bool = False, tier: int = 0) -> Score:
    return Score(component="c", value=value, weight=weight, gate=gate, tier=tier)


@given(st.lists(scores, max_size=8))
def test_a_reward_lies_between_zero_and_one(given_scores: list[Score]) -> None:
    try:
        assert 0.0 <= reward(given_scores) <= 1.0
    except NoReward:
        assert all(s.value is None for s in given_scores)


@given(st.lists(scores, min_size=1, max_size=8))
def test_full_marks_are_exactly_one(given_scores: list[Score]) -> None:
    assert reward([replace(s, value=1.0) for s in given_scores]) == 1.0


@given(st.lists(scores, min_size=1, max_size=8))
def test_no_marks_are_exactly_zero(given_scores: list[Score]) -> None:
    assert reward([replace(s, value=0.0) for s in given_scores]) == 0.0


@given(st.data(), st.lists(scores.filter(lambda s: s.value is not None), min_size=1, max_size=6))
def test_the_order_of_scores_changes_nothing(data: st.DataObject, given_scores: list[Score]) -> None:
    assert reward(data.draw(st.permutations(given_scores))) == reward(given_scores)


@given(st.lists(scores, max_size=6), st.floats(0, 1, exclude_max=True), st.integers(0, 3))
def test_a_failed_gate_gives_zero_whatever_else_was_scored(
    others: list[Score], value: float, tier: int
) -> None:
    assert reward([*others, _score(value, gate=True, tier=tier)]) == 0.0


@given(st.lists(scores, max_size=6))
def test_a_gate_that_abstains_makes_no_reward(others: list[Score]) -> None:
    with pytest.raises(NoReward, match="gate 'c' abstained"):
        reward([*others, _score(None, gate=True)])


@given(st.lists(scores.filter(lambda s: s.value is not None), min_size=1, max_size=6), weights)
def test_an_abstention_is_left_out_of_the_weights(others: list[Score], weight: float) -> None:
    assert reward([*others, _score(None, weight=weight)]) == reward(others)


@given(st.floats(0, 1, exclude_max=True), values, values)
def test_a_later_tier_counts_only_when_earlier_ones_are_full(first: float, one: float, two: float) -> None:
    assert reward([_score(first), _score(one, tier=1)]) == reward([_score(first), _score(two, tier=1)])
    assert reward([_score(1.0), _score(one, tier=1)]) == pytest.approx((1 + one) / 2)


@given(values, values, weights, weights)
def test_scores_of_one_tier_add_up_to_their_weighted_mean(a: float, b: float, v: float, w: float) -> None:
    mean = (v * a + w * b) / (v + w)

    assert reward([_score(a, weight=v), _score(b, weight=w)]) == pytest.approx(mean)


def test_a_passed_gate_without_weight_decides_nothing_by_itself() -> None:
    assert reward([_score(1.0, gate=True, weight=0), _score(0.25)]) == 0.25


def test_nothing_scored_is_no_reward_and_not_zero() -> None:
    with pytest.raises(NoReward, match="no component gave a score"):
        reward([])
    with pytest.raises(NoReward, match="no component gave a score"):
        reward([_score(None), _score(1.0, weight=0)])


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_score_outside_of_its_range_is_refused(value: float) -> None:
    with pytest.raises(NoReward, match="outside"):
        reward([_score(value)])
