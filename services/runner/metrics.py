"""What a runner counts.

Guarantees: labels are closed sets.
Does not: export; the process's `Metrics` does."""

from tiltyard.core.outcome import Outcome
from tiltyard.telemetry.metrics import Metrics as Registry


class Metrics:
    """Attempts by outcome, their seconds, and what is aboard."""

    def __init__(self, registry: Registry) -> None:
        self._attempts = registry.counter("attempts", "Attempts that ended on this runner.", ["outcome"])
        self._seconds = registry.histogram("attempt_seconds", "Seconds of an episode.", ["outcome"])
        self._aboard = registry.gauge("runner_aboard", "Episodes under way.", [])

    def attempted(self, outcome: Outcome, seconds: float) -> None:
        self._attempts.labels(str(outcome)).inc()
        self._seconds.labels(str(outcome)).observe(seconds)

    def aboard(self, count: int) -> None:
        self._aboard.set(count)
