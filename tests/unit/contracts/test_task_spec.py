"""A wrong task spec is refused with the place and the cure."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.contracts.document import InvalidDocument, canonical_json, parse
from tiltyard.contracts.task_spec import TaskSpec

MINIMAL: dict[str, Any] = {
    "name": "add",
    "instruction": "Write add(a, b).",
    "verifier": {
        "components": [
            {"kind": "cases", "entry_point": "add", "cases": [{"args": [1, 2], "expected": 3}]},
            {
                "kind": "python_tests",
                "name": "hidden",
                "files": {"test_add.py": "def test_it(): ..."},
                "expected": ["test_add.test_it"],
            },
        ]
    },
    "oracle": {"answer": "def add(a, b): return a + b"},
}
CASES = "verifier.components.0.cases"
HIDDEN = "verifier.components.1.python_tests"


def _with(path: str, value: object) -> dict[str, Any]:
    """The minimal spec with the value at a dotted path; steps that name a union's tag are left out of it."""
    document = copy.deepcopy(MINIMAL)
    *steps, last = path.split("/")
    at: Any = document
    for step in steps:
        at = at[int(step)] if step.isdigit() else at.setdefault(step, {})
    at[int(last) if last.isdigit() else last] = value
    return document


def _faults(document: object) -> dict[str, str]:
    with pytest.raises(InvalidDocument) as caught:
        parse(TaskSpec, document, what="task spec")
    return {fault.path: fault.message for fault in caught.value.faults}


def test_the_minimal_spec_is_valid() -> None:
    assert parse(TaskSpec, MINIMAL, what="task spec").environment.image == "host"


@pytest.mark.parametrize(
    ("path", "at", "near"),
    [
        ("instrution", "instrution", "instruction"),
        ("environment/resourses", "environment.resourses", "resources"),
        ("environment/resources/memory", "environment.resources.memory", "memory_mb"),
        ("verifier/components/0/entry_pont", f"{CASES}.entry_pont", "entry_point"),
        ("verifier/components/0/cases/0/expcted", f"{CASES}.cases.0.expcted", "expected"),
        ("verifier/components/1/expectd", f"{HIDDEN}.expectd", "expected"),
        ("verifier/components/1/parial", f"{HIDDEN}.parial", "partial"),
        ("oracle/noopp", "oracle.noopp", "noop"),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest_one(path: str, at: str, near: str) -> None:
    key = path.rsplit("/", 1)[-1]

    assert _faults(_with(path, {})) == {at: f"unknown key {key!r}; did you mean {near!r}?"}


def test_a_key_of_another_member_of_the_union_is_not_suggested() -> None:
    assert _faults(_with("verifier/components/1/entry_poin", "f")) == {
        f"{HIDDEN}.entry_poin": "unknown key 'entry_poin'"
    }


def test_an_unknown_key_that_is_near_to_nothing_gets_no_suggestion() -> None:
    assert _faults(_with("zzz", 1)) == {"zzz": "unknown key 'zzz'"}


@pytest.mark.parametrize("key", ["name", "instruction", "verifier", "oracle"])
def test_a_missing_key_is_named(key: str) -> None:
    document = {k: v for k, v in MINIMAL.items() if k != key}

    assert _faults(document) == {key: "required key is missing"}


def test_every_fault_is_named_at_once() -> None:
    document = {**_with("zzz", 1), "difficulty": 7}
    del document["name"]

    assert set(_faults(document)) == {"zzz", "difficulty", "name"}


def test_the_error_says_what_was_read_and_where_it_is_wrong() -> None:
    with pytest.raises(InvalidDocument, match=r"^task spec is not valid: zzz: unknown key 'zzz'$"):
        parse(TaskSpec, _with("zzz", 1), what="task spec")


@pytest.mark.parametrize("document", [None, 1, "spec", [], [MINIMAL]])
def test_what_is_no_object_is_refused(document: object) -> None:
    assert list(_faults(document)) == [""]


TEXTS = [
    ("instruction", "instruction"),
    ("oracle/answer", "oracle.answer"),
    ("environment/files/a.txt", "environment.files.a.txt"),
    ("interface/prefix", "interface.prefix"),
    ("lineage/source", "lineage.source"),
    ("verifier/components/0/cases/0/expected", f"{CASES}.cases.0.expected"),
    ("verifier/components/0/cases/0/args/1", f"{CASES}.cases.0.args.1"),
    ("verifier/components/1/expected/0", f"{HIDDEN}.expected.0"),
]


@pytest.mark.parametrize(("path", "at"), TEXTS)
def test_a_nul_character_is_refused_with_its_offset(path: str, at: str) -> None:
    assert _faults(_with(path, "ab\x00c")) == {at: "NUL character at offset 2; remove it"}


@pytest.mark.parametrize(("path", "at"), TEXTS)
def test_a_lone_surrogate_is_refused(path: str, at: str) -> None:
    faults = _faults(_with(path, "ab\ud800c"))

    assert list(faults) == [at]
    assert "unicode" in faults[at] or "not valid UTF-8 at offset 2" in faults[at]


def test_text_deep_inside_of_a_case_is_looked_at() -> None:
    deep = {"a": [{"b": ["fine", "\x00"]}]}

    assert _faults(_with("verifier/components/0/cases/0/expected", deep)) == {
        f"{CASES}.cases.0.expected": "NUL character at offset 0; remove it"
    }
    assert _faults(_with("verifier/components/0/cases/0/expected", {"\x00": 1}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("path", ["difficulty", "limits/cpu_seconds", "verifier/components/0/weight"])
def test_a_number_that_is_not_finite_is_refused(path: str, value: float) -> None:
    (message,) = _faults(_with(path, value)).values()

    assert "finite" in message


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("inf")]}])
def test_a_case_holds_finite_numbers_alone(value: object) -> None:
    (message,) = _faults(_with("verifier/components/0/cases/0/expected", value)).values()

    assert "finite" in message


ESCAPES = ["/etc/passwd", "..", "../x", "a/../../x", "a/..", "", ".", "a\\b", "x" * 256, "é" * 128]
ODD = ["./a", "a//b", "a/", "a\nb", "a/./b", "a\x1b[2J"]


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("where", ["environment/files", "verifier/components/1/files"])
def test_a_path_that_escapes_is_refused(where: str, path: str) -> None:
    (message,) = _faults(_with(where, {path: "text"})).values()

    assert (
        "inside the work folder" in message or "at least 1 character" in message or "at most 255" in message
    )


@pytest.mark.parametrize("path", ODD)
def test_a_path_has_one_form_only(path: str) -> None:
    (message,) = _faults(_with("interface/file", path)).values()

    assert "plain form" in message


@given(st.text(max_size=20))
def test_every_accepted_path_stays_inside(path: str) -> None:
    try:
        spec = parse(TaskSpec, _with("interface/file", path), what="task spec")
    except InvalidDocument:
        return
    parts = spec.interface.file.split("/")
    assert not {"", ".", ".."} & set(parts)


def test_a_file_cannot_also_be_a_folder() -> None:
    files = {"data": "1", "data/a.txt": "2"}

    assert _faults(_with("environment/files", files)) == {
        "environment.files": "file 'data' is also the folder of 'data/a.txt'; rename one"
    }


@pytest.mark.parametrize("given_file", ["solution.py", "solution.py/x"])
def test_the_solution_cannot_be_a_given_file(given_file: str) -> None:
    (message,) = _faults(_with("environment/files", {given_file: "x"})).values()

    assert "solution.py" in message


def test_component_names_differ() -> None:
    (message,) = _faults(_with("verifier/components/1/name", "tests")).values()

    assert message == "component names must differ; tests stands twice"


def test_an_unknown_kind_of_component_names_the_known_ones() -> None:
    (message,) = _faults(_with("verifier/components/0/kind", "case")).values()

    assert "'cases', 'python_tests', 'answer'" in message


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=8))
def test_whatever_is_accepted_can_be_hashed(value: object) -> None:
    try:
        spec = parse(TaskSpec, _with("verifier/components/0/cases/0/expected", value), what="task spec")
    except InvalidDocument:
        return
    assert canonical_json(spec)
    assert len(spec.version()) == 64
