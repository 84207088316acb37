"""What an evaluator counts.

Guarantees: labels are closed sets.
Does not: export; the process's `Metrics` does."""

from tiltyard.core.outcome import Outcome
from tiltyard.telemetry.metrics import Metrics as Registry


class Metrics:
    """Gradings by outcome, admissions by verdict, and their seconds."""

    def __init__(self, registry: Registry) -> None:
        self._gradings = registry.counter("gradings", "Gradings done.", ["outcome"])
        self._seconds = registry.histogram("grading_seconds", "Seconds of a grading.", ["outcome"])
        self._admissions = registry.counter("admissions", "Admissions judged.", ["verdict"])
        self._judged = registry.histogram("admission_seconds", "Seconds of one.", ["verdict"])

    def graded(self, outcome: Outcome, seconds: float) -> None:
        self._gradings.labels(str(outcome)).inc()
        self._seconds.labels(str(outcome)).observe(seconds)

    def admitted(self, admitted: bool, seconds: float) -> None:
        verdict = "active" if admitted else "quarantined"
        self._admissions.labels(verdict).inc()
        self._judged.labels(verdict).observe(seconds)
