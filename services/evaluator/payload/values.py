"""Plain Python values as one line of JSON, both ways; runs in the evaluator and, sent in, inside sandboxes.

Guarantees: `load` builds exact built-in types only, whatever wrote the line, so nothing that it returns has
an `__eq__` of its own; it raises ValueError for every line that it does not understand.
Does not: carry functions, modules or instances of classes; `dump` refuses them.

Scalars are JSON's own. Everything else is an object with one key: l list, t tuple, s set, f frozenset,
d dict as pairs, b bytes in hex, c complex, x nan or an infinity, n a whole number in hex, i an iterator,
r a range."""

import _json  # importing all of `json` takes as long as starting Python

LONGEST = 1_000_000
"""Elements that an iterator may give."""
SAFE_BITS = 10_000
"""Whole numbers up to here travel in decimal; Python refuses decimals of more than 4,300 digits."""
DEEPEST = 200
"""Nesting that is understood."""


class CannotCross(Exception):
    """A value that is not plain data."""


def dump(value):
    """One line of ASCII JSON; raises `CannotCross`."""
    return "".join(_WRITE(_pack(value, 0), 0))


def load(line):
    """The value in a line; ValueError for anything else, however deep or large."""
    try:
        text = (line if isinstance(line, str) else str(line, "utf-8")).strip()
        node, end = _READ(text, 0)
        if end == len(text):
            return _unpack(node, 0)
    except _UNREADABLE as error:
        raise ValueError(f"not a value: {type(error).__name__}") from error
    raise ValueError("not a value: more than one")


_UNREADABLE = (RecursionError, MemoryError, KeyError, TypeError, OverflowError, StopIteration, SystemError)
"""SystemError: what the scanner raises for a malformed string while `json.decoder` is not loaded."""


def _no_constant(name):
    raise ValueError(f"not a value: {name}")


class _Reading:
    """How `json`'s own scanner is to read."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)


def _no_instance(value):
    raise CannotCross(f"a {type(value).__name__} is not plain data")


_READ = _json.make_scanner(_Reading())  # pyright: ignore[reportArgumentType]
_WRITE = _json.make_encoder(
    None, _no_instance, _json.encode_basestring_ascii, None, ":", ",", False, False, False
)


def _pack(value, depth):
    if value is None or value is True or value is False:
        return value
    if depth > DEEPEST:
        raise CannotCross(f"nested deeper than {DEEPEST}")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return _pack_int(int.__int__(value))
    if isinstance(value, float):
        return _pack_float(float.__float__(value))
    for kind, tag in _SEQUENCES:
        if isinstance(value, kind):
            return {tag: [_pack(v, depth + 1) for v in value]}
    if isinstance(value, dict):
        return {"d": [[_pack(k, depth + 1), _pack(v, depth + 1)] for k, v in value.items()]}
    return _pack_rare(value, depth)


_SEQUENCES = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "f"))


def _pack_int(value):
    return value if value.bit_length() <= SAFE_BITS else {"n": hex(value)}


def _pack_float(value):
    return value if value - value == 0 else {"x": repr(value)}


def _pack_rare(value, depth):
    if isinstance(value, (bytes, bytearray)):
        return {"b": bytes(value).hex()}
    if isinstance(value, complex):
        return {"c": [_pack_float(value.real), _pack_float(value.imag)]}
    if isinstance(value, range):
        return {"r": [_pack_int(value.start), _pack_int(value.stop), _pack_int(value.step)]}
    if hasattr(type(value), "__next__"):
        return {"i": [_pack(v, depth + 1) for v in _bounded(value)]}
    if hasattr(type(value), "__iter__") and hasattr(type(value), "__len__"):
        return {"l": [_pack(v, depth + 1) for v in _bounded(value)]}
    raise CannotCross(f"a {type(value).__name__} is not plain data")


def _bounded(values):
    for index, value in enumerate(values):
        if index >= LONGEST:
            raise CannotCross(f"an iterator gave more than {LONGEST} values")
        yield value


def _unpack(node, depth):
    if node is None or type(node) in (bool, int, float, str):
        return node
    if depth > DEEPEST or type(node) is not dict or len(node) != 1:
        raise ValueError("not a value")
    ((tag, body),) = node.items()
    if tag == "d":
        return {_unpack(k, depth + 1): _unpack(v, depth + 1) for k, v in body}
    if tag in ("b", "n", "x"):
        return _unpack_text(tag, body)
    if type(body) is not list:
        raise ValueError("not a value")
    return _BUILDERS[tag]([_unpack(part, depth + 1) for part in body])


def _unpack_text(tag, body):
    if type(body) is not str:
        raise ValueError("not a value")
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "n":
        return int(body, 16)
    if body not in ("nan", "inf", "-inf"):
        raise ValueError("not a value")
    return float(body)


_BUILDERS = {
    "l": list,
    "t": tuple,
    "s": set,
    "f": frozenset,
    "i": iter,
    "c": lambda parts: complex(*parts),
    "r": lambda parts: range(*parts),
}
