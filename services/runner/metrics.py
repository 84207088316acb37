"""What a runner counts.

Guarantees: labels are closed sets.
Does not: export; the process's `Metrics` does."""

from tiltyard.contracts.http import NodeHealth
from tiltyard.core.outcome import Outcome
from tiltyard.telemetry.metrics import Metrics as Registry


class Metrics:
    """Attempts by outcome, their seconds, what is aboard, and how well the sandboxes are."""

    def __init__(self, registry: Registry) -> None:
        self._attempts = registry.counter("attempts", "Attempts that ended on this runner.", ["outcome"])
        self._seconds = registry.histogram("attempt_seconds", "Seconds of an episode.", ["outcome"])
        self._aboard = registry.gauge("runner_aboard", "Episodes under way.", [])
        self._breaker = registry.gauge("sandbox_breaker_open", "Whether no sandbox is lent: 1, or 0.", [])
        self._pressure = registry.gauge(
            "sandbox_pressure", "Percent of time that work stood still.", ["resource"]
        )
        self._drifted = registry.gauge("sandbox_drifted", "Sandboxes found not to be pristine.", [])

    def attempted(self, outcome: Outcome, seconds: float) -> None:
        self._attempts.labels(str(outcome)).inc()
        self._seconds.labels(str(outcome)).observe(seconds)

    def told(self, health: NodeHealth) -> None:
        """What the fleet was told."""
        self._breaker.set(health.state == "open")
        self._drifted.set(health.drifted)
        for resource, percent in health.pressure.items():
            self._pressure.labels(resource).set(percent)

    def aboard(self, count: int) -> None:
        self._aboard.set(count)
