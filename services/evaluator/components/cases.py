"""Hidden calls: the policy's own process answers them, and the comparison happens out here.

Guarantees: no expected value enters the sandbox; whatever the process writes is read as plain values of
bounded size, or as a wrong answer.
Does not: keep the arguments of later calls from the code that answers earlier ones, nor hinder code that
looks its answers up: hidden, varied arguments do."""

from collections.abc import Sequence

from services.evaluator.boxes import Boxes
from services.evaluator.ending import ending
from services.evaluator.equality import same
from services.evaluator.payload import FOLDER, program
from services.evaluator.payload.values import dump, load
from services.evaluator.submission import HOME, Submission, printable
from tiltyard.contracts.records import ScoreRecord
from tiltyard.contracts.task_spec import Case, CasesComponent
from tiltyard.core.outcome import ruling
from tiltyard.sandbox import Box, ExecResult

DRIVER = f"{FOLDER}/driver.py"
ROOM = 16_384
"""Bytes that any answer may have; a right one is at most `SWELL` times as long as the expected value."""
SWELL = 8
SHOWN = 5
"""Failed cases that the detail describes."""


async def measure(component: CasesComponent, submission: Submission, boxes: Boxes) -> ScoreRecord:
    """Run every case in one process in a fresh sandbox. Raises `SandboxError`."""
    network = submission.spec.environment.network
    async with (
        boxes.some(1, submission.shape) as (box,),
        boxes.reaching(box, network, whose="solution", note=submission.connections.append),
    ):
        result = await _run(box, component, submission)
    outcome = ending(result)
    wrong = _wrong(component, result.stdout.split(b"\n"))
    passed = len(component.cases) - len(wrong)
    full = float(not wrong)
    value = passed / len(component.cases) if component.partial else full
    return ScoreRecord(
        component=component.name,
        value=value if ruling(outcome).valid else None,
        weight=component.weight,
        gate=component.gate,
        tier=component.tier,
        outcome=outcome,
        detail="\n".join([*list(wrong.values())[:SHOWN], printable(result.detail, 500)]).strip(),
        tests={f"case_{i}": i not in wrong for i in range(len(component.cases))},
        stderr=printable(result.stderr),
        truncated=result.stdout_truncated or result.stderr_truncated,
    )


async def _run(box: Box, component: CasesComponent, submission: Submission) -> ExecResult:
    limits, file = submission.spec.limits, submission.spec.interface.file
    calls = [dump(["call", component.entry_point, list(case.args), {}]) for case in component.cases]
    return await box.exec(
        ["python3", "-I", "-S", DRIVER, HOME, file, "0", "1"],
        stdin="\n".join(calls).encode() + b"\n",
        files={**submission.files, **program("driver")},
        cpu_seconds=limits.cpu_seconds,
        wall_seconds=limits.wall_seconds,
        output_bytes=limits.output_bytes,
    )


def _wrong(component: CasesComponent, lines: Sequence[bytes]) -> dict[int, str]:
    """Each failed case's index and what it answered."""
    faults = {}
    for index, case in enumerate(component.cases):
        fault = _fault(case, lines[index] if index < len(lines) else b"")
        if fault is not None:
            faults[index] = f"case_{index}: {_call(component, case)} {fault}"
    return faults


def _call(component: CasesComponent, case: Case) -> str:
    arguments = ", ".join(map(repr, case.args))
    return printable(f"{component.entry_point}({arguments[:200]})", 300)


def _fault(case: Case, line: bytes) -> str | None:
    """None for the right answer."""
    if not line:
        return "gave no answer: the process ended first"
    expected = dump(case.expected)
    if len(line) > max(ROOM, SWELL * len(expected)):
        return f"answered {len(line)} bytes, far more than the expected value has"
    try:
        reply = load(line)
    except ValueError:
        return f"answered nonsense: {printable(line, 200)!r}"
    if type(reply) is not list or reply[:1] not in (["ok"], ["error"]) or len(reply) < 2:
        return f"answered nonsense: {printable(line, 200)!r}"
    if reply[0] == "error":
        return f"raised {printable(str(reply[2:])[:500], 500)}"
    return (
        None if same(case.expected, reply[1]) else f"returned {_short(reply[1])}, not {_short(case.expected)}"
    )


def _short(value: object) -> str:
    return printable(dump(value), 200)
