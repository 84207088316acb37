"""The answer's own text against what is expected.

Guarantees: no sandbox, no code, no parsing.
Does not: read mathematics."""

from services.evaluator.submission import Submission, printable
from tiltyard.contracts.records import ScoreRecord
from tiltyard.contracts.task_spec import AnswerComponent
from tiltyard.core.outcome import Outcome


def measure(component: AnswerComponent, submission: Submission) -> ScoreRecord:
    """1 when the texts are equal, else 0."""
    given, expected = submission.answer, component.expected
    if component.match == "stripped":
        given, expected = given.strip(), expected.strip()
    right = given == expected
    return ScoreRecord(
        component=component.name,
        value=float(right),
        weight=component.weight,
        gate=component.gate,
        tier=component.tier,
        outcome=Outcome.GRADED,
        detail=""
        if right
        else f"answered {printable(repr(given), 500)}, expected {printable(repr(expected), 500)}",
    )
