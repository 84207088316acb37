"""Generated function-writing tasks: "write the body of f" in several families, from trivial to two-step.

Guarantees: item i of a split is a pure function of (seed, split, i); two splits never share a program; the
cases of a task tell its program from its nearest rivals (a constant one off, arguments swapped).
Does not: run anything but its own one-line programs; a policy's code runs in a sandbox only."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import product
from typing import Any

from services.cli.demo.families import FAMILIES, NAMES, Family

CASES = 6
"""Hidden calls of a task, edge cases among them."""
PATIENCE = 300
"""Draws in a row without a new prompt, after which there are taken to be no more."""
CONSTANTS = range(2, 10)


class Split(StrEnum):
    """Who may see a program; a program belongs to exactly one."""

    WARM_START = "sft"
    """Shown with its solution in the warm start."""
    TRAIN = "train"
    """Practised with rewards alone."""
    HELDOUT = "heldout"
    """Only measured."""


SHARES = {Split.WARM_START: (0.0, 0.5), Split.TRAIN: (0.5, 0.8), Split.HELDOUT: (0.8, 1.0)}
"""Of each family's programs in the order of their hashes, so that every split has every family."""

EDGES: Mapping[str, Sequence[Any]] = {"n": (0, -1, 1), "m": (0, 1, -1), "s": ("", "a"), "l": ([], [0])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One hidden call and what it returns."""

    args: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program of a family: names and constants filled in."""

    family: Family
    names: tuple[str, ...]
    """Parameters of f, in order."""
    values: Mapping[str, Any]

    @property
    def expression(self) -> str:
        return self.family.body.format(**self.values)

    @property
    def constant(self) -> int | None:
        return self.values.get("k")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A function to write.

    The solution file is `prefix + answer`; `prompt` is what a policy reads."""

    name: str
    family: str
    prompt: str
    prefix: str
    oracle: str
    cases: tuple[Case, ...]
    difficulty: float


def task(seed: int, split: Split, index: int) -> Task:
    """Item `index` of a split."""
    rng = random.Random(f"{seed}/{split.value}/{index}")
    program, wording = _draw(rng, split, index)
    return Task(
        name=f"{split.value}/{seed}/{index}",
        family=program.family.name,
        prompt=_prompt(program, wording),
        prefix=f"def f({','.join(program.names)}):\n    ",
        oracle=f"return {program.expression}\n",
        cases=_cases(rng, program),
        difficulty=_difficulty(program, wording),
    )


def tasks(seed: int, split: Split, count: int) -> list[Task]:
    """The first `count` items of a split with distinct prompts.

    Raises ValueError when the families cannot give that many."""
    found: dict[str, Task] = {}
    index = newest = 0
    while len(found) < count:
        item = task(seed, split, index)
        if item.prompt not in found:
            found[item.prompt], newest = item, index
        if index - newest > PATIENCE:
            raise ValueError(f"only {len(found)} distinct {split.value} tasks, not {count}; ask for fewer")
        index += 1
    return list(found.values())


def sft_examples(seed: int, count: int) -> Iterator[dict[str, str]]:
    """Prompts with their solutions, of programs that no other split has; the completion has no newline."""
    for index in range(count):
        rng = random.Random(f"{seed}/{Split.WARM_START.value}/{index}")
        program, wording = _draw(rng, Split.WARM_START, index)
        yield {"prompt": _prompt(program, wording), "completion": f"return {program.expression}"}


def _draw(rng: random.Random, split: Split, index: int) -> tuple[Program, int]:
    """A program, families taking turns, and the number of a wording."""
    family = FAMILIES[index % len(FAMILIES)]
    return rng.choice(_programs(family, split)), rng.randrange(len(family.wordings))


@cache
def _programs(family: Family, split: Split) -> tuple[Program, ...]:
    """The split's programs of a family."""
    constants = CONSTANTS if "{k}" in family.body else (None,)
    found = [
        _program(family, names, constant)
        for names in product(*(NAMES[kind] for kind in family.args))
        for constant in constants
    ]
    found.sort(key=lambda p: hashlib.sha256(p.expression.encode()).digest())
    start, end = (round(share * len(found)) for share in SHARES[split])
    return tuple(found[start:end])


def _program(family: Family, names: tuple[str, ...], constant: int | None) -> Program:
    values: dict[str, Any] = dict(zip(family.args, names, strict=True))
    if constant is not None:
        values["k"] = constant
    return Program(family=family, names=names, values=values)


def _prompt(program: Program, wording: int) -> str:
    requirement = program.family.wordings[wording].format(**program.values)
    return f"def f({','.join(program.names)}): {requirement}\n"


def _difficulty(program: Program, wording: int) -> float:
    """From 0 (give back the argument) to 0.8 (two steps, a constant, an indirect wording)."""
    return round(0.3 * program.family.steps + 0.1 * (program.constant is not None) + 0.05 * wording, 3)


def _cases(rng: random.Random, program: Program) -> tuple[Case, ...]:
    """Edge cases, a call for each rival that tells it apart, and more until there are enough and they
    vary."""
    rows = _edge_rows(program.family) + [_telling(rng, program, rival) for rival in _rivals(program)]
    while len(rows) < CASES or _constant(_results(program, rows)):
        rows.append(_row(rng, program))
    return tuple(Case(args=r, expected=e) for r, e in zip(rows, _results(program, rows), strict=True))


def _telling(rng: random.Random, program: Program, rival: Program) -> tuple[Any, ...]:
    """A call on which the two programs differ."""
    while True:
        row = _row(rng, program)
        if _results(program, [row]) != _results(rival, [row]):
            return row


def _constant(results: Sequence[Any]) -> bool:
    return all(result == results[0] for result in results)


def _edge_rows(family: Family) -> list[tuple[Any, ...]]:
    return [tuple(EDGES[kind][i] for kind in family.args) for i in range(2)]


def _row(rng: random.Random, program: Program) -> tuple[Any, ...]:
    return tuple(_value(rng, kind, program) for kind in program.family.args)


def _value(rng: random.Random, kind: str, program: Program) -> Any:
    if kind == "s":
        return "".join(rng.choice("abcdeXYZ ") for _ in range(rng.randint(12, 18)))
    if kind == "l":
        return [_number(rng, program) for _ in range(rng.randint(3, 7))]
    return _number(rng, program)


def _number(rng: random.Random, program: Program) -> int:
    """Near the program's constant a third of the time: that is where off-by-one programs differ."""
    if program.constant is not None and rng.random() < 1 / 3:
        return program.constant + rng.randint(-1, 1)
    return rng.randint(-20, 40)


def _rivals(program: Program) -> Iterator[Program]:
    """Programs that a wrong answer is likely to be."""
    values, family = program.values, program.family
    if program.constant is not None:
        for step in (-1, 1):
            yield replace(program, values={**values, "k": program.constant + step})
    if family.args == "nm" and not family.symmetric:
        yield replace(program, values={**values, "n": values["m"], "m": values["n"]})


def _results(program: Program, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What one of our own expressions gives for each call."""
    code = compile(program.expression, program.family.name, "eval")
    return [eval(code, {}, dict(zip(program.names, row, strict=True))) for row in rows]
