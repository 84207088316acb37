"""Advantages: centred in the group, by valid members alone, equal to the published formulas."""

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.group import GRPO_EPSILON, Estimator, advantages

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "advantages.json").read_text())
rewards = st.floats(0, 1)
groups = st.lists(rewards, min_size=2, max_size=16)
estimators = st.sampled_from(Estimator)


def _present(given_advantages: list[float | None]) -> list[float]:
    return [a for a in given_advantages if a is not None]


@given(groups, estimators)
def test_advantages_of_a_group_add_up_to_zero(group: list[float], estimator: Estimator) -> None:
    assert sum(_present(advantages(group, estimator))) == pytest.approx(0, abs=1e-9)


@given(groups, st.lists(st.integers(0, 16), max_size=6), estimators)
def test_an_invalid_member_is_absent_and_changes_nobody_elses_advantage(
    group: list[float], places: list[int], estimator: Estimator
) -> None:
    mixed: list[float | None] = list(group)
    for place in places:
        mixed.insert(place, None)

    given_advantages = advantages(mixed, estimator)

    assert [a is None for a in given_advantages] == [r is None for r in mixed]
    assert _present(given_advantages) == advantages(group, estimator)


@given(groups, estimators, st.floats(-1, 1))
def test_a_constant_added_to_all_rewards_changes_nothing(
    group: list[float], estimator: Estimator, constant: float
) -> None:
    moved = advantages([r + constant for r in group], estimator)

    assert moved == pytest.approx(advantages(group, estimator), abs=1e-6)


@given(groups, estimators)
def test_the_better_rollout_has_the_greater_advantage(group: list[float], estimator: Estimator) -> None:
    by_reward = sorted(zip(group, _present(advantages(group, estimator)), strict=True))

    assert [a for _, a in by_reward] == sorted(a for _, a in by_reward)


@given(groups)
def test_rloo_compares_each_reward_with_the_mean_of_the_others(group: list[float]) -> None:
    n = len(group)
    expected = [r - (sum(group) - r) / (n - 1) for r in group]

    assert advantages(group, Estimator.RLOO) == pytest.approx(expected, abs=1e-9)


@given(groups.filter(lambda g: stdev(g) > 0.01))
def test_grpo_advantages_have_unit_spread(group: list[float]) -> None:
    spread = stdev(_present(advantages(group, Estimator.GRPO)))

    assert spread == pytest.approx(stdev(group) / (stdev(group) + GRPO_EPSILON))


def test_an_invalid_failure_does_not_vote() -> None:
    group = [1.0, None, 0.0, 0.0]

    centred = advantages(group, Estimator.DR_GRPO)
    assert centred[1] is None
    assert _present(centred) == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    scaled = advantages(group, Estimator.GRPO)
    assert scaled[1] is None
    assert _present(scaled) == pytest.approx([1.15470, -0.57735, -0.57735], abs=2 * GRPO_EPSILON)
    assert _present(advantages(group, Estimator.RLOO)) == pytest.approx([1.0, -0.5, -0.5])


@pytest.mark.parametrize("estimator", list(Estimator))
@pytest.mark.parametrize("group", [[], [1.0], [None, 1.0, None], [None, None]])
def test_fewer_than_two_valid_rewards_have_no_baseline(
    group: list[float | None], estimator: Estimator
) -> None:
    with pytest.raises(ValueError, match="at least 2 valid rewards"):
        advantages(group, estimator)


def _golden_groups(name: str) -> list[tuple[list[float], list[float]]]:
    size = GOLDEN["group_size"]
    both = zip(GOLDEN["rewards"], GOLDEN[name], strict=True)
    rows = list(both)
    return [([r for r, _ in rows[i : i + size]], [a for _, a in rows[i : i + size]]) for i in range(0, 16, 4)]


@pytest.mark.parametrize("estimator", [Estimator.DR_GRPO, Estimator.RLOO])
def test_advantages_equal_the_golden_numbers(estimator: Estimator) -> None:
    for group, expected in _golden_groups(str(estimator)):
        assert advantages(group, estimator) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_grpo_equals_the_golden_numbers_but_for_its_epsilon() -> None:
    for group, expected in _golden_groups("grpo"):
        rescaled = [a * (stdev(group) + 1e-6) / (stdev(group) + GRPO_EPSILON) for a in expected]

        assert advantages(group, Estimator.GRPO) == pytest.approx(rescaled, rel=1e-9)
