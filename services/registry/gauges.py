"""What the registry tells Prometheus: its own requests, and the state of the platform from its rows.

Guarantees: labels are closed sets (states, outcomes, route templates), so that their number stays small; rows
are counted at most once in `FRESH` seconds however often somebody asks.
Does not: keep history; Prometheus does."""

import time
from collections.abc import Mapping

from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry.ports import Ports
from tiltyard.core.outcome import RULINGS
from tiltyard.core.rollout import State
from tiltyard.store.views import queue
from tiltyard.telemetry.metrics import Metrics

FRESH = 5.0
COUNTS = {
    "rollouts": "SELECT state, count(*) FROM rollouts GROUP BY state",
    "failures": "SELECT outcome, count(*) FROM (SELECT outcome FROM attempts WHERE outcome IS NOT NULL"
    " UNION ALL SELECT outcome FROM gradings WHERE outcome IS NOT NULL) ends GROUP BY outcome",
    "runs": "SELECT state, count(*) FROM runs GROUP BY state",
    "tasks": "SELECT state, count(*) FROM task_versions GROUP BY state",
    "runners": "SELECT CASE WHEN alive THEN 'alive' ELSE 'ended' END, count(*) FROM runners GROUP BY 1",
}
FAILURES = tuple(str(outcome) for outcome, ruling in RULINGS.items() if not ruling.valid)


class Gauges:
    """Counts of rows as gauges, and counters of requests."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._rows = {
            "rollouts": metrics.gauge("rollouts", "Rollouts by state.", ("state",)),
            "failures": metrics.gauge(
                "failures",
                "Attempts and gradings that failed by the platform's fault.",
                ("failure_kind",),
            ),
            "runs": metrics.gauge("runs", "Runs by state.", ("state",)),
            "tasks": metrics.gauge("task_versions", "Task versions by state.", ("state",)),
            "runners": metrics.gauge("runners", "Runner incarnations.", ("state",)),
        }
        self._desired = metrics.gauge(
            "runners_desired", "Runners that would hold all that is aboard or may be granted.", ("pool",)
        )
        self._requests = metrics.counter("http_requests", "Requests answered.", ("method", "route", "status"))
        self._seconds = metrics.histogram(
            "http_request_seconds", "Time to answer a request.", ("method", "route")
        )
        self._counted_at = -FRESH

    @property
    def content_type(self) -> str:
        return self._metrics.content_type

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(method, route, f"{status // 100}xx").inc()
        self._seconds.labels(method, route).observe(seconds)

    async def exposition(self, ports: Ports) -> bytes:
        """Everything in Prometheus' text format."""
        now = time.monotonic()
        if now - self._counted_at >= FRESH:
            self._counted_at = now
            self._set(await ports.work.run(_count))
            for pool, runners in (await ports.work.run(queue.desired)).items():
                self._desired.labels(pool).set(runners)
        return self._metrics.exposition()

    def _set(self, counted: Mapping[str, Mapping[str, int]]) -> None:
        closed = {"rollouts": tuple(map(str, State)), "failures": FAILURES}
        for name, gauge in self._rows.items():
            found = counted[name]
            for label in closed.get(name, tuple(found)):
                gauge.labels(label).set(found.get(label, 0))


def _count(session: Session) -> dict[str, dict[str, int]]:
    return {name: {row[0]: row[1] for row in session.execute(text(sql))} for name, sql in COUNTS.items()}


class Timed:
    """Middleware: counts each request under its route's template, never under its path."""

    def __init__(self, app: ASGIApp, *, gauges: Gauges) -> None:
        self.app, self._gauges = app, gauges

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._gauges.answered(scope["method"], route, status, time.perf_counter() - started)
