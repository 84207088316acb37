"""Laws of the random numbers."""

import numpy as np
import pytest

from services.rollout.noise import key_of, uniform


def numbers(seed: int, count: int) -> np.ndarray:
    return uniform(np.full(count, key_of(seed), np.uint64), np.arange(count, dtype=np.uint64))


def test_a_number_depends_on_its_key_and_place_alone() -> None:
    keys = np.array([key_of(s) for s in range(50)], np.uint64)
    places = np.arange(50, dtype=np.uint64) % np.uint64(7)
    together = uniform(keys, places)
    alone = [uniform(keys[i : i + 1], places[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, -5, 2**64 - 1])
def test_numbers_are_spread_evenly(seed: int) -> None:
    drawn = np.sort(numbers(seed, 20_000))
    distance = np.abs(drawn - np.arange(20_000) / 20_000).max()
    assert 0 <= drawn[0] <= drawn[-1] < 1
    assert distance < 1.95 / np.sqrt(20_000), "Kolmogorov-Smirnov at 0.1 %"


def test_neighbouring_seeds_and_choices_are_unrelated() -> None:
    ends = [
        uniform(np.array([key_of(s, c)], np.uint64), np.array([0], np.uint64))[0]
        for s in range(100)
        for c in range(100)
    ]
    assert len(set(ends)) == 10_000
    assert abs(np.corrcoef(ends[:-1], ends[1:])[0, 1]) < 0.04


def test_the_numbers_stay_what_they_were() -> None:
    """splitmix64 from state 0 gives e220a8397b1dcdaf first."""
    assert (
        uniform(np.array([0], np.uint64), np.array([0], np.uint64))[0]
        == (0xE220A8397B1DCDAF >> 11) * 2.0**-53
    )
