"""Python test functions against a solution that runs in another sandbox.

Guarantees: the tests and the policy's code never share a process or a sandbox; the verdict comes from the
tests' sandbox alone, and only as far as it names each expected test.
Does not: hinder code that looks its answers up: hidden, varied arguments do."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from services.evaluator.boxes import Boxes
from services.evaluator.ending import ending
from services.evaluator.payload import FOLDER, program
from services.evaluator.payload.values import dump, load
from services.evaluator.submission import HOME, Submission, printable
from tiltyard.contracts.records import ScoreRecord
from tiltyard.contracts.task_spec import PythonTestsComponent
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.sandbox import Box, ExecResult

DRIVER, HARNESS = f"{FOLDER}/driver.py", f"{FOLDER}/harness.py"
WIRE = 3
"""Descriptor of the socket between the two, in both."""
OWN_SECONDS = 15.0
"""CPU and wall-clock time that the tests may take beyond the solution's."""
REPORT_BYTES = 32_000_000
FAREWELL_SECONDS = 0.5
"""How long the solution's process may outlive the last test before it is killed."""


@dataclass(frozen=True)
class Report:
    """What the harness writes."""

    tests: dict[str, str | None]
    broken: str | None
    touched: int
    waited: float


REPORT = TypeAdapter(Report)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """How both sides ended; the solution's is None when it had to be killed after the last test."""

    tests: ExecResult
    solution: ExecResult | None


async def measure(component: PythonTestsComponent, submission: Submission, boxes: Boxes) -> ScoreRecord:
    """Run every expected test. Raises `SandboxError`."""
    note = submission.connections.append
    async with (
        boxes.some(2, submission.shape) as (tests_box, solution_box),
        boxes.reaching(tests_box, submission.tests_network, whose="tests", note=note),
        boxes.reaching(solution_box, submission.spec.environment.network, whose="solution", note=note),
    ):
        runs = await _run(component, submission, tests_box, solution_box)
    outcome, passed, detail = _verdict(component, runs, submission.spec.limits.wall_seconds)
    share = sum(passed.values()) / len(passed)
    solution = runs.solution
    return ScoreRecord(
        component=component.name,
        value=(share if component.partial else float(share == 1.0)) if ruling(outcome).valid else None,
        weight=component.weight,
        gate=component.gate,
        tier=component.tier,
        outcome=outcome,
        detail=printable(detail),
        tests=passed,
        stdout=printable(runs.tests.stderr),
        stderr=printable(solution.stderr) if solution else "",
        truncated=bool(solution and solution.stderr_truncated) or runs.tests.stderr_truncated,
    )


async def _run(
    component: PythonTestsComponent, submission: Submission, tests_box: Box, solution_box: Box
) -> Runs:
    """Both processes, joined by a socket that each side loses when the other ends."""
    ours, theirs = socket.socketpair()
    solution = asyncio.create_task(_run_solution(submission, solution_box, theirs))
    try:
        tests = await _run_tests(component, submission, tests_box, ours)
        await asyncio.wait([solution], timeout=FAREWELL_SECONDS)
        return Runs(tests=tests, solution=solution.result() if solution.done() else None)
    finally:
        solution.cancel()
        await asyncio.gather(solution, return_exceptions=True)


async def _run_tests(
    component: PythonTestsComponent, submission: Submission, box: Box, wire: socket.socket
) -> ExecResult:
    limits = submission.spec.limits
    with wire:
        return await box.exec(
            ["python3", "-I", "-S", HARNESS, HOME, str(WIRE)],
            stdin=dump(list(dict.fromkeys(component.expected))).encode(),
            files={**{k: v.encode() for k, v in component.files.items()}, **program("harness")},
            fds={WIRE: wire},
            cpu_seconds=limits.cpu_seconds + OWN_SECONDS,
            wall_seconds=limits.wall_seconds + OWN_SECONDS,
            output_bytes=REPORT_BYTES,
        )


async def _run_solution(submission: Submission, box: Box, wire: socket.socket) -> ExecResult:
    limits = submission.spec.limits
    with wire:
        return await box.exec(
            ["python3", "-I", "-S", DRIVER, HOME, submission.spec.interface.file, str(WIRE), str(WIRE)],
            files={**submission.files, **program("driver")},
            fds={WIRE: wire},
            cpu_seconds=limits.cpu_seconds,
            wall_seconds=limits.wall_seconds,
            output_bytes=limits.output_bytes,
        )


Verdict = tuple[Outcome, dict[str, bool], str]


def _verdict(component: PythonTestsComponent, runs: Runs, wall_seconds: float) -> Verdict:
    """Outcome, each expected test's pass, and the detail."""
    nothing = dict.fromkeys(component.expected, False)
    end = ending(runs.solution) if runs.solution else Outcome.GRADED
    if not ruling(end).valid:
        return end, nothing, runs.solution.detail if runs.solution else ""
    report = _report(runs.tests)
    if report is None:
        return _broken_end(runs.tests), nothing, _last_words(runs.tests)
    if report.broken is not None:
        blame = end if report.touched else Outcome.VERIFIER_BROKEN
        return blame, nothing, report.broken
    if end is Outcome.CODE_WALL_LIMIT and report.waited < wall_seconds / 2:
        return Outcome.VERIFIER_BROKEN, nothing, f"the tests alone took longer than {wall_seconds} s"
    passed = {test: report.tests.get(test, "missing") is None for test in component.expected}
    return end if not all(passed.values()) else Outcome.GRADED, passed, _failures(report, component.expected)


def _report(result: ExecResult) -> Report | None:
    if not result.ok or result.stdout_truncated:
        return None
    try:
        return REPORT.validate_python(load(result.stdout))
    except ValueError:
        return None


def _broken_end(result: ExecResult) -> Outcome:
    """The tests' own end: never the policy's, since no code of the policy ran there."""
    end = ending(result)
    return Outcome.VERIFIER_BROKEN if ruling(end).valid else end


def _last_words(result: ExecResult) -> str:
    words = printable(result.stderr[-4_000:])
    return f"the tests ended without a report ({result.outcome} {result.detail}): {words}"


def _failures(report: Report, expected: Sequence[str]) -> str:
    lines = [f"{t}: {report.tests.get(t, 'missing')}" for t in expected if report.tests.get(t, "missing")]
    return "\n\n".join(lines[:5])
