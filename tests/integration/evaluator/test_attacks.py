"""Wrong answers that try to pass: none of them fools a grader, and none of them is blamed on the platform.

The attacks stand in attacks.txt, each as the one file that a policy writes; where a hack needs more files
(tests, conftest.py, pytest.ini), its code writes them. Answers that look hidden calls up in a table pass if
they guess the calls: no grader tells them from honest ones, and hidden, varied calls are the remedy."""

from pathlib import Path
from typing import Any

import pytest

from services.evaluator.grading import Measured
from tiltyard.contracts.task_spec import (
    Case,
    CasesComponent,
    Environment,
    Interface,
    Limits,
    Oracle,
    PythonTestsComponent,
    Resources,
    TaskSpec,
    Verifier,
)
from tiltyard.core.outcome import Outcome, ruling

pytestmark = pytest.mark.sandbox

RIGHT = "def add(a, b):\n    return a + b\n"
TESTS = """
import solution
def test_add():
    assert solution.add(2, 3) == 5
def test_neg():
    assert solution.add(-2, -3) == -5
def test_list():
    assert solution.add([1], [2]) == [1, 2]
"""
HERE = Path(__file__).parent
SECRET = "never-enters-the-sandbox"


def _spec(component: Any) -> TaskSpec:
    return TaskSpec(
        name="add",
        instruction="add two values",
        environment=Environment(resources=Resources(memory_mb=128, pids=16, disk_mb=16)),
        interface=Interface(),
        limits=Limits(cpu_seconds=1, wall_seconds=20, output_bytes=200_000),
        verifier=Verifier(components=(component,)),
        oracle=Oracle(answer=RIGHT),
    )


BY_TESTS = _spec(
    PythonTestsComponent(
        kind="python_tests",
        files={"test_s.py": TESTS},
        expected=("test_s.test_add", "test_s.test_neg", "test_s.test_list"),
    )
)
BY_CASES = _spec(
    CasesComponent(
        kind="cases",
        entry_point="add",
        cases=(
            Case(args=(2, 3), expected=5),
            Case(args=(-2, -3), expected=-5),
            Case(args=([1], [2]), expected=[1, 2]),
            Case(args=("never-enters-", "the-sandbox"), expected=SECRET),
        ),
    )
)


ATTACKS = {
    **{
        name: code
        for name, _, code in (
            section.partition("\n") for section in (HERE / "attacks.txt").read_text().split("### ")[1:]
        )
    },
    "nothing": "",
    "nul": "def add(a, b):\n    return 1\x00\n",
    "lone_surrogate": "def add(a, b):\n    return '\ud800'\n",
}


HUNT, SLEEPER = ATTACKS.pop("hunt"), ATTACKS.pop("sleeper")
BOTH = pytest.mark.parametrize("spec", [BY_TESTS, BY_CASES], ids=["tests", "cases"])


def _grade(bench: Any, spec: TaskSpec, answer: str, **limits: float) -> Measured:
    """As often as the platform would, where the machine starved the sandbox."""
    limited = spec.model_copy(update={"limits": spec.limits.model_copy(update=limits)})
    for _ in range(5):
        measured = bench.grade(limited, answer)
        if measured.outcome is not Outcome.STARVED:
            return measured
    raise AssertionError("starved five times over: this machine is too busy to tell")


@BOTH
@pytest.mark.parametrize("answer", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_wrong_answer_gets_nothing_and_is_its_own_fault(bench: Any, spec: TaskSpec, answer: str) -> None:
    measured = _grade(bench, spec, answer)
    assert ruling(measured.outcome).valid, measured
    assert measured.reward == 0.0, measured


@BOTH
def test_an_answer_that_sleeps_uses_up_its_own_time(bench: Any, spec: TaskSpec) -> None:
    measured = _grade(bench, spec, SLEEPER, wall_seconds=2)
    assert measured.outcome is Outcome.CODE_WALL_LIMIT
    assert measured.reward == 0.0


@BOTH
def test_nothing_of_the_verifier_can_be_found_inside(bench: Any, spec: TaskSpec) -> None:
    measured = _grade(bench, spec, HUNT, cpu_seconds=8, wall_seconds=40)
    assert measured.outcome is Outcome.GRADED, measured
    (score,) = measured.scores
    assert "null" in score.detail, score.detail
    assert not any(score.tests.values())


@BOTH
def test_the_right_answer_passes_before_and_after_all_that(bench: Any, spec: TaskSpec) -> None:
    measured = bench.grade(spec, RIGHT)
    assert measured.reward == 1.0, measured
    assert all(measured.scores[0].tests.values())


@BOTH
def test_looking_known_calls_up_passes_as_no_grader_can_tell(bench: Any, spec: TaskSpec) -> None:
    answer = (
        "T = {(2, 3): 5, (-2, -3): -5, ('never-enters-', 'the-sandbox'): 'never-enters-the-sandbox'}\n"
        "def add(a, b):\n    try: return T[(a, b)]\n    except Exception: return [1, 2]\n"
    )
    assert bench.grade(spec, answer).reward == 1.0


@BOTH
def test_a_right_answer_that_also_makes_noise_passes(bench: Any, spec: TaskSpec) -> None:
    noisy = f"import sys\nprint('hello')\nsys.stderr.write('noise\\n')\n{RIGHT}"
    measured = bench.grade(spec, noisy)
    assert measured.reward == 1.0
    assert "hello" in measured.scores[0].stderr
