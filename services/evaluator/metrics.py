"""What an evaluator counts.

Guarantees: labels are closed sets.
Does not: export; the process's `Metrics` does."""

from tiltyard.core.outcome import Outcome
from tiltyard.telemetry.metrics import Metrics as Registry


class Metrics:
    """Gradings by outcome, admissions by verdict, and their seconds."""

    def __init__(self, registry: Registry) -> None:
        self._gradings = registry.counter("tiltyard_gradings_total", "Gradings done.", ["outcome"])
        self._seconds = registry.histogram("tiltyard_grading_seconds", "Seconds of a grading.", ["outcome"])
        self._admissions = registry.counter("tiltyard_admissions_total", "Admissions judged.", ["verdict"])
        self._judged = registry.histogram("tiltyard_admission_seconds", "Seconds of an admission.", ["verdict"])

    def graded(self, outcome: Outcome, seconds: float) -> None:
        self._gradings.labels(str(outcome)).inc()
        self._seconds.labels(str(outcome)).observe(seconds)

    def admitted(self, admitted: bool, seconds: float) -> None:
        verdict = "active" if admitted else "quarantined"
        self._admissions.labels(verdict).inc()
        self._judged.labels(verdict).observe(seconds)
