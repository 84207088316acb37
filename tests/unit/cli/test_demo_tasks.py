"""The demo's generated tasks: pure, disjoint, solvable by their oracles and by nothing near them."""

import re
from typing import Any

import pytest

from services.cli.demo.families import FAMILIES, NAMES
from services.cli.demo.tasks import CASES, Split, Task, sft_examples, task, tasks

SEED = 0
TASKS = {split: tasks(SEED, split, 60) for split in (Split.TRAIN, Split.HELDOUT)}
EVERY = [t for found in TASKS.values() for t in found]


def _function(prefix: str, answer: str) -> Any:
    scope: dict[str, Any] = {}
    exec(f"{prefix}{answer}", scope)
    return scope["f"]


def _passes(item: Task, answer: str) -> bool:
    function = _function(item.prefix, answer)
    try:
        results = [function(*case.args) for case in item.cases]
    except (TypeError, ZeroDivisionError, AttributeError, IndexError, ValueError):
        return False
    wanted = [case.expected for case in item.cases]
    return results == wanted and list(map(type, results)) == list(map(type, wanted))


@pytest.mark.parametrize("item", EVERY, ids=lambda t: t.name)
def test_an_oracle_passes_and_nothing_trivial_does(item: Task) -> None:
    assert _passes(item, item.oracle)
    assert not _passes(item, "pass\n")
    assert not any(_passes(item, f"return {c.expected!r}\n") for c in item.cases)


@pytest.mark.parametrize("item", [t for t in EVERY if re.search(r"\d", t.oracle)], ids=lambda t: t.name)
def test_a_constant_that_is_one_off_fails(item: Task) -> None:
    for found in re.finditer(r"(?<![\w%])\d\b|(?<=%)\d", item.oracle):
        near = int(found.group()) + 1
        wrong = item.oracle[: found.start()] + str(near) + item.oracle[found.end() :]
        if wrong.count("%2==0") or found.group() == "0":
            continue
        assert not _passes(item, wrong), wrong


@pytest.mark.parametrize("split", list(Split))
def test_an_item_is_a_function_of_seed_split_and_index(split: Split) -> None:
    assert [task(SEED, split, i) for i in range(20)] == [task(SEED, split, i) for i in range(20)]
    assert [task(SEED, split, i).oracle for i in range(20)] != [
        task(SEED + 1, split, i).oracle for i in range(20)
    ]


def test_splits_never_share_a_program() -> None:
    shown = {row["completion"] + "\n" for row in sft_examples(SEED, 4_000)}
    train, heldout = (
        {t.oracle for t in tasks(SEED, s, n)} for s, n in ((Split.TRAIN, 300), (Split.HELDOUT, 120))
    )

    assert not shown & train
    assert not shown & heldout
    assert not train & heldout


def test_no_two_families_share_a_name_of_an_argument() -> None:
    letters = "".join(NAMES.values())

    assert len(set(letters)) == len(letters)


def test_an_author_gets_as_many_distinct_prompts_as_asked_for() -> None:
    found = tasks(SEED, Split.TRAIN, 300)

    assert len({t.prompt for t in found}) == len({t.name for t in found}) == 300


def test_more_tasks_than_there_are_is_an_error_that_says_how_many() -> None:
    with pytest.raises(ValueError, match=r"only \d+ distinct heldout tasks, not 100000; ask for fewer"):
        tasks(SEED, Split.HELDOUT, 100_000)


def test_every_family_and_the_whole_range_of_difficulty_appear() -> None:
    found = tasks(SEED, Split.TRAIN, 300)

    assert {t.family for t in found} == {f.name for f in FAMILIES}
    assert min(t.difficulty for t in found) <= 0.1
    assert max(t.difficulty for t in found) >= 0.7
    assert all(0 <= t.difficulty <= 1 for t in found)


def test_cases_hold_edges_and_are_many() -> None:
    assert all(len(t.cases) >= CASES for t in EVERY)
    lists = [t for t in EVERY if t.family.startswith("list/")]
    assert all(any(case.args == ([],) for case in t.cases) for t in lists)


def test_an_example_of_the_warm_start_shows_a_solution_without_a_newline() -> None:
    for row in sft_examples(SEED, 50):
        assert set(row) == {"prompt", "completion"}
        assert row["prompt"].endswith("\n")
        assert re.fullmatch(r"return .+", row["completion"])
