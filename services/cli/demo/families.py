"""Families of one-line functions: programs alike but for names and constants, each asked for in three ways.

Guarantees: no two families share a program.
Does not: draw anything (`services.cli.demo.tasks`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Programs alike but for names and constants.

    `args` holds one letter per parameter: n and m whole numbers, s a string, l a list of whole numbers.
    `{k}` is a constant."""

    name: str
    args: str
    body: str
    wordings: tuple[str, str, str]
    steps: int = 1
    """Operations in sequence: 0 trivial, 2 two-step."""
    symmetric: bool = False
    """Swapping the arguments changes nothing."""


def _family(name: str, args: str, steps: int, body: str, *wordings: str, symmetric: bool = False) -> Family:
    first, second, third = wordings
    texts = (first, second, third)
    return Family(name=name, args=args, steps=steps, body=body, wordings=texts, symmetric=symmetric)


FAMILIES = (
    _family("number/same", "n", 0, "{n}", "{n} itself", "just {n}", "give back {n}"),
    _family("number/add", "n", 1, "{n}+{k}", "add {k} to {n}", "{n} plus {k}", "increase {n} by {k}"),
    _family("number/scale", "n", 1, "{n}*{k}", "multiply {n} by {k}", "{n} times {k}", "scale {n} by {k}"),
    _family("number/less", "nm", 1, "{n}-{m}", "subtract {m} from {n}", "{n} minus {m}", "{n} less {m}"),
    _family(
        "number/gap",
        "nm",
        2,
        "abs({n}-{m})",
        "distance from {n} to {m}",
        "gap of {n} and {m}",
        "how far is {n} from {m}",
        symmetric=True,
    ),
    _family(
        "number/product-plus",
        "nm",
        2,
        "{n}*{m}+{k}",
        "multiply {n} by {m} then add {k}",
        "{n} times {m}, plus {k}",
        "product of {n} and {m}, plus {k}",
        symmetric=True,
    ),
    _family(
        "number/divides",
        "n",
        1,
        "{n}%{k}==0",
        "is {n} divisible by {k}",
        "true if {k} divides {n}",
        "is {n} a multiple of {k}",
    ),
    _family(
        "number/choose",
        "nm",
        2,
        "{n} if {n}>{k} else {m}",
        "{n} if over {k} else {m}",
        "if {n} above {k} give {n} else {m}",
        "{n} when more than {k}, or {m}",
    ),
    _family(
        "text/repeat", "s", 1, "{s}*{k}", "repeat {s} {k} times", "{k} copies of {s}", "{s} said {k} times"
    ),
    _family(
        "text/cut",
        "s",
        1,
        "{s}[:{k}]",
        "first {k} letters of {s}",
        "take {k} letters of {s}",
        "cut {s} to {k} letters",
    ),
    _family(
        "text/upper-repeat",
        "s",
        2,
        "{s}.upper()*{k}",
        "uppercase {s} then repeat {k} times",
        "{k} copies of {s} in capitals",
        "capitals of {s} said {k} times",
    ),
    _family(
        "list/sum-scaled",
        "l",
        2,
        "sum({l})*{k}",
        "sum of {l} times {k}",
        "add up {l} then multiply by {k}",
        "total of {l} scaled by {k}",
    ),
    _family(
        "list/over",
        "l",
        2,
        "[i for i in {l} if i>{k}]",
        "items of {l} over {k}",
        "keep items of {l} above {k}",
        "filter {l} for more than {k}",
    ),
    _family(
        "list/each-scaled",
        "l",
        2,
        "[i*{k} for i in {l}]",
        "each item of {l} times {k}",
        "multiply items of {l} by {k}",
        "scale every item of {l} by {k}",
    ),
)
NAMES = {"n": "abdnx", "m": "cuvyz", "s": "pqrst", "l": "eghkl"}
