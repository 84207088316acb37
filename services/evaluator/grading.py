"""One grading: an answer and a hidden verifier in, a typed and scored record out.

Guarantees: whatever goes wrong becomes an outcome of `core.outcome`; a grading has a reward only when every
component's outcome is valid.
Does not: read or write rows or objects (`jobs`)."""

from dataclasses import dataclass, replace

from services.evaluator.boxes import Boxes
from services.evaluator.components import answer, cases, python_tests
from services.evaluator.submission import Submission, printable, unreached
from tiltyard.contracts.records import ScoreRecord
from tiltyard.contracts.task_spec import (
    AnswerComponent,
    CasesComponent,
    Component,
    PublicSpec,
    PythonTestsComponent,
    Verifier,
)
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.core.reward import NoReward, Score, reward
from tiltyard.sandbox import Connection, SandboxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one pass of a verifier over an answer came to."""

    outcome: Outcome
    """`graded`; or how the policy's code ended in the first component where it did not end well; or the first
    end that is not valid."""
    reason: str
    reward: float | None
    """None when the outcome is not valid."""
    scores: tuple[ScoreRecord, ...]
    connections: tuple[Connection, ...] = ()
    """Out of its sandboxes."""


async def grade(spec: PublicSpec, verifier: Verifier, text: str, boxes: Boxes) -> Measured:
    """Measure an answer with every component, one after another, until one has an invalid outcome."""
    submission = Submission(spec=spec, answer=text, tests_network=verifier.network)
    measured = await _grade(submission, verifier, boxes)
    return replace(measured, connections=tuple(submission.connections))


async def _grade(submission: Submission, verifier: Verifier, boxes: Boxes) -> Measured:
    scores: list[ScoreRecord] = []
    for component in verifier.components:
        try:
            score = await _measure(component, submission, boxes)
        except SandboxError as error:
            return _unmeasured(Outcome.SANDBOX_FAILED, f"{component.name}: {error}", scores)
        scores.append(score)
        if not ruling(score.outcome).valid:
            return _unmeasured(score.outcome, f"{component.name}: {score.detail}", scores)
        if score.value != 1.0 and (lost := unreached(submission)):
            return _unmeasured(Outcome.SANDBOX_FAILED, f"{component.name}: a host is away: {lost}", scores)
    return _measured(scores)


async def _measure(component: Component, submission: Submission, boxes: Boxes) -> ScoreRecord:
    match component:
        case AnswerComponent():
            return answer.measure(component, submission)
        case CasesComponent():
            return await cases.measure(component, submission, boxes)
        case PythonTestsComponent():
            return await python_tests.measure(component, submission, boxes)


def _unmeasured(outcome: Outcome, reason: str, scores: list[ScoreRecord]) -> Measured:
    return Measured(outcome=outcome, reason=printable(reason, 2_000), reward=None, scores=tuple(scores))


def _measured(scores: list[ScoreRecord]) -> Measured:
    parts = [
        Score(component=s.component, value=s.value, weight=s.weight, gate=s.gate, tier=s.tier) for s in scores
    ]
    try:
        total = reward(parts)
    except NoReward as error:
        return _unmeasured(Outcome.VERIFIER_BROKEN, str(error), scores)
    outcome = next((s.outcome for s in scores if s.outcome is not Outcome.GRADED), Outcome.GRADED)
    return Measured(outcome=outcome, reason="", reward=total, scores=tuple(scores))
