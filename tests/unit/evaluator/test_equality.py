"""Cases compare by JSON's types, with tolerance for floats alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.evaluator.equality import same

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(json_values)
def test_every_json_value_is_the_same_as_itself(value: Any) -> None:
    assert same(value, value)


@pytest.mark.parametrize(
    ("expected", "given_"),
    [
        (1, True),
        (True, 1),
        (0, False),
        (1, 1.0),
        (1, "1"),
        ("1", 1),
        (None, False),
        (None, 0),
        ([], None),
        ([1, 2], [1, 2, 3]),
        ([1], {1}),
        ([1, True], [1, 1]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"1": 2}, {1: 2}),
        ({"a": 1}, {"a": True}),
        ("a", b"a"),
        (0.0, False),
        (1.5, "1.5"),
        (1.0, float("nan")),
        (1.0, float("inf")),
        (1.0, 1.00001),
        (1.0, 10**400),
        (1.0, 1 + 0j),
    ],
)
def test_another_type_or_value_is_not_the_same(expected: Any, given_: Any) -> None:
    assert not same(expected, given_)


@pytest.mark.parametrize(
    ("expected", "given_"),
    [
        ([1, [2]], (1, (2,))),
        (1.0, 1),
        (1.0, 1.0000001),
        (0.3, 0.1 + 0.2),
        (10**20, 1e20),
        ({"a": [1.0]}, {"a": (1,)}),
    ],
)
def test_tuples_are_lists_and_floats_have_tolerance(expected: Any, given_: Any) -> None:
    assert same(expected, given_)
