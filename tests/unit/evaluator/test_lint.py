"""Lint names each fault of a task, and what to do."""

from typing import Any

import pytest

from services.evaluator.lint import faults
from tiltyard.contracts.task_spec import (
    Case,
    CasesComponent,
    Oracle,
    PythonTestsComponent,
    TaskSpec,
    Verifier,
)

CASES = CasesComponent(kind="cases", entry_point="f", cases=(Case(args=(1,), expected=2),))


def _spec(component: Any = CASES, **changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "name": "t",
        "instruction": "write f",
        "verifier": Verifier(components=(component,)),
        "oracle": Oracle(answer="def f(x): return x + 1"),
    }
    return TaskSpec(**{**fields, **changes})


def _tests(source: str, *expected: str) -> PythonTestsComponent:
    return PythonTestsComponent(kind="python_tests", files={"test_a.py": source}, expected=expected)


def _faults(spec: TaskSpec) -> list[str]:
    return faults(spec.public(), spec.hidden())


def test_a_sound_task_has_no_faults() -> None:
    assert _faults(_spec()) == []
    assert _faults(_spec(_tests("def test_x(): pass", "test_a.test_x"))) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_spec(oracle=Oracle(answer="x", noop="x ")), "are the same"),
        (_spec(CASES.model_copy(update={"weight": 0})), "weight 0"),
        (
            _spec(
                CASES.model_copy(update={"cases": (Case(args=(1,), expected=1), Case(args=(1,), expected=2))})
            ),
            "cases 0 and 1 make the same call",
        ),
        (_spec(_tests("def test_x(: pass", "test_a.test_x")), "test_a.py cannot be parsed"),
        (_spec(_tests("def test_x(): pass", "test_a.test_y")), "expected names test_a.test_y"),
        (
            _spec(_tests("def test_x(): pass\ndef test_y(): pass", "test_a.test_x")),
            "files define test_a.test_y",
        ),
        (_spec(_tests("def test_x(): pass", "test_a.test_x", "test_a.test_x")), "more than once"),
        (_spec(_tests("(" * 10_000, "test_a.test_x")), "cannot be parsed"),
    ],
)
def test_a_fault_is_named(spec: TaskSpec, message: str) -> None:
    assert message in "\n".join(_faults(spec))
