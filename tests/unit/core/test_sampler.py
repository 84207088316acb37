"""The sampler: seeded uniform passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.sampler import draws

tasksets = st.lists(st.text(max_size=5), min_size=1, max_size=12, unique=True)
seeds = st.integers(0, 2**31 - 1)


@given(tasksets, seeds, st.integers(0, 5))
def test_every_task_is_drawn_once_in_each_pass(tasks: list[str], seed: int, turn: int) -> None:
    drawn = draws(tasks, seed=seed, start=turn * len(tasks), count=len(tasks))

    assert sorted(drawn) == sorted(tasks)


@given(tasksets, seeds, st.integers(0, 30), st.integers(0, 30))
def test_a_slice_of_draws_is_the_same_however_it_is_asked_for(
    tasks: list[str], seed: int, start: int, count: int
) -> None:
    whole = draws(tasks, seed=seed, start=0, count=start + count)

    assert draws(tasks, seed=seed, start=start, count=count) == whole[start:]
    assert [draws(tasks, seed=seed, start=i, count=1)[0] for i in range(start + count)] == whole


@given(st.data(), tasksets, seeds)
def test_the_order_in_which_tasks_are_listed_changes_nothing(
    data: st.DataObject, tasks: list[str], seed: int
) -> None:
    shuffled = data.draw(st.permutations(tasks))

    assert draws(shuffled, seed=seed, start=0, count=20) == draws(tasks, seed=seed, start=0, count=20)


def test_draws_are_the_same_on_every_machine() -> None:
    drawn = draws(["a", "b", "c", "d"], seed=7, start=0, count=8)

    assert "".join(drawn) == "dbcacbad"


def test_seeds_and_passes_differ() -> None:
    tasks = [str(i) for i in range(50)]
    first = draws(tasks, seed=1, start=0, count=50)

    assert draws(tasks, seed=2, start=0, count=50) != first
    assert draws(tasks, seed=1, start=50, count=50) != first


def test_an_empty_taskset_is_an_error_and_not_an_empty_draw() -> None:
    with pytest.raises(ValueError, match="taskset is empty"):
        draws([], seed=0, start=0, count=1)
