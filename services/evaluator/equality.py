"""Whether what a function returned is what a case expects.

Guarantees: types must agree as in JSON: true is not 1, and 1 is not "1"; tuples count as lists; only where a
float is expected is a number compared with tolerance.
Does not: trust `==` of anything but exact built-in types, which is all that `payload.values.load` makes."""

import math

RELATIVE = 1e-6
EXACT_FLOATS = 2**53
"""Whole numbers from here on may have been written as floats, and the database keeps them as integers."""


def same(expected: object, given: object) -> bool:
    """Compare a JSON value with a returned value."""
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return type(given) is type(expected) and given == expected
    if isinstance(expected, int):
        return _same_whole(expected, given)
    if isinstance(expected, float):
        return type(given) in (int, float) and _close(expected, given)
    if isinstance(expected, list | tuple):
        return (
            isinstance(given, list | tuple)
            and len(given) == len(expected)
            and all(map(same, expected, given))
        )
    if isinstance(expected, dict):
        return (
            isinstance(given, dict)
            and given.keys() == expected.keys()
            and all(same(value, given[key]) for key, value in expected.items())
        )
    return False


def _same_whole(expected: int, given: object) -> bool:
    if type(given) is float and abs(expected) >= EXACT_FLOATS:
        return given == expected
    return type(given) is int and given == expected


def _close(expected: float, given: object) -> bool:
    try:
        return math.isclose(expected, given, rel_tol=RELATIVE, abs_tol=1e-12)  # pyright: ignore[reportArgumentType]
    except OverflowError:
        return False
