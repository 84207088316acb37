"""How well this machine makes sandboxes, as the fleet is told with each heartbeat.

Guarantees: what is told is what the pool's last look saw, at most a second ago; metrics say the same.
Does not: judge. The pool's breaker does (`tiltyard.sandbox.breaker`)."""

from services.runner.metrics import Metrics
from tiltyard.contracts.http import NodeHealth
from tiltyard.sandbox import WarmPool


class Nurse:
    """Looks at a pool when a heartbeat asks."""

    def __init__(self, pool: WarmPool | None, metrics: Metrics) -> None:
        """`pool` None: the runner lends nothing."""
        self._pool, self._metrics = pool, metrics

    def __call__(self) -> NodeHealth | None:
        """None: it has no sandboxes of its own."""
        if self._pool is None:
            return None
        seen = self._pool.health()
        told = NodeHealth(
            state=seen.state.value,
            reason=seen.reason,
            pressure=seen.pressure,
            drifted=self._pool.drifted,
            failed=seen.failed,
        )
        self._metrics.told(told)
        return told
