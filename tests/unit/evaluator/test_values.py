"""Values cross as exact built-in types, or not at all."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.evaluator.payload import values
from services.evaluator.payload.values import DEEPEST, CannotCross, dump, load

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters(), max_size=20)
    | st.binary(max_size=20)
    | st.complex_numbers(allow_nan=False)
)
hashable = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=20,
)


def _types(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value), [_types(v) for v in value]
    return type(value)


@settings(deadline=None)
@given(plain)
def test_plain_data_crosses_unchanged(value: Any) -> None:
    returned = load(dump(value))
    assert returned == value
    assert _types(returned) == _types(value)


def test_what_json_cannot_say_crosses_too() -> None:
    nan: Any = load(dump(float("nan")))
    assert math.isnan(nan)
    assert load(dump([math.inf, -math.inf, -(10**6_000)])) == [math.inf, -math.inf, -(10**6_000)]
    items: Any = load(dump(iter([1, 2])))
    assert list(items) == [1, 2]
    assert load(dump(range(3, 9, 2))) == range(3, 9, 2)
    assert load(dump("\ud800")) == "\ud800"


def test_instances_of_classes_become_what_they_are_made_of() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert type(load(dump(Sly(3)))) is int


@pytest.mark.parametrize("value", [object(), len, [object()], {1: object()}, type])
def test_what_is_not_plain_data_does_not_cross(value: object) -> None:
    with pytest.raises(CannotCross):
        dump(value)


def test_a_value_that_contains_itself_does_not_cross() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CannotCross, match="nested"):
        dump(loop)


HOSTILE = {
    "empty": "",
    "bare list": "[1]",
    "two tags": '{"l":[],"t":[]}',
    "no tag": "{}",
    "unknown tag": '{"q":[1]}',
    "tag without list": '{"l":1}',
    "nan": "NaN",
    "two values": "1 2",
    "bad hex": '{"b":"zz"}',
    "number as text": '{"x":"5"}',
    "unhashable member": '{"s":[{"l":[]}]}',
    "unhashable key": '{"d":[[{"l":[]},1]]}',
    "broken pair": '{"d":[1]}',
    "broken range": '{"r":[1.5,2,3]}',
    "deep": "[" * 200_000,
    "deep values": '{"l":[' * (DEEPEST + 2) + "]}" * (DEEPEST + 2),
    "deep and tagged": '{"l":[' * 200_000,
    "long number": "1" * 10_000,
    "control character": '"\n"',
    "invalid utf-8": b"\xff\xfe",
    "truncated": '{"l":["ok",',
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_line_is_a_value_error(line: str | bytes) -> None:
    with pytest.raises(
        ValueError, match=r"not a value|codec|digits|hexadecimal|literal|unpack|control character"
    ):
        load(line)


def test_a_hostile_line_is_a_value_error_where_json_is_not_loaded() -> None:
    """The C scanner alone raises SystemError for some lines."""
    probe = (
        Path(values.__file__).read_text()
        + "\nfor line in LINES:\n    try:\n        load(line)\n    except ValueError:\n        continue\n"
        "    raise AssertionError(line)\n"
    )
    lines = json.dumps([line for line in HOSTILE.values() if isinstance(line, str) and len(line) < 1_000])
    subprocess.run([sys.executable, "-I", "-S", "-c", f"LINES = {lines}\n{probe}"], check=True)
