"""The registry's API as typed calls.

Guarantees: each call answers with a document of `contracts.http`; lists are read page by page as they are
iterated.
Does not: work asynchronously; a thread each is enough for authors and the command line."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

from tiltyard.client.errors import ClientError
from tiltyard.client.transport import Transport
from tiltyard.contracts import http
from tiltyard.contracts.document import Document, canonical_json, parse
from tiltyard.contracts.http import TaskBatch, TaskSubmission

D = TypeVar("D", bound=Document)
BATCH = 100
"""Tasks in one request."""
POLL = 0.5
"""Seconds between two looks at something that is awaited."""


class Client:
    """One registry, reached with a token. Also a context manager."""

    def __init__(self, base_url: str, token: str, *, transport: Transport | None = None) -> None:
        self._transport = transport or Transport(base_url, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    def _get(self, model: type[D], path: str, **query: Any) -> D:
        return parse(
            model, self._transport.request("GET", path, query=query).json(), what=f"answer of {path}"
        )

    def _post(self, model: type[D], path: str, body: Document | dict[str, Any] | None = None) -> D:
        content = None if body is None else canonical_json(body)
        answer = self._transport.request("POST", path, body=content)
        return parse(model, answer.json(), what=f"answer of {path}")

    def _patch(self, model: type[D], path: str, change: Document) -> D:
        """Send what was set of a document, and nothing that it fills in by itself."""
        body = canonical_json(change.model_dump(mode="json", exclude_unset=True))
        return parse(
            model, self._transport.request("PATCH", path, body=body).json(), what=f"answer of {path}"
        )

    def _list(self, model: type[D], path: str, *, page: int = 200, **query: Any) -> Iterator[D]:
        cursor: str | None = None
        while True:
            rows = self._get(http.Page[model], path, limit=page, cursor=cursor, **query)
            yield from rows.items
            cursor = rows.next_cursor
            if cursor is None:
                return

    # Tasks

    def submit_task(self, submission: TaskSubmission) -> http.TaskAccepted:
        """Submit one task; the same content is accepted again without effect."""
        return self._post(http.TaskAccepted, "/v1/tasks", submission)

    def submit_tasks(self, submissions: Sequence[TaskSubmission]) -> list[http.TaskAccepted]:
        """Submit tasks whose names differ, in batches of which each is stored whole or not at all."""
        accepted: list[http.TaskAccepted] = []
        for start in range(0, len(submissions), BATCH):
            batch = TaskBatch(tasks=tuple(submissions[start : start + BATCH]))
            accepted += self._post(http.Page[http.TaskAccepted], "/v1/tasks:batch", batch).items
        return accepted

    def tasks(
        self,
        *,
        taskset: str | None = None,
        state: str | None = None,
        name: str | None = None,
        tag: str | None = None,
    ) -> Iterator[http.TaskView]:
        """Task versions, newest first."""
        return self._list(http.TaskView, "/v1/tasks", taskset=taskset, state=state, name=name, tag=tag)

    def task(self, reference: str) -> http.TaskView:
        """A task version by id, or the newest of a name."""
        return self._get(http.TaskView, f"/v1/tasks/{quote(reference)}")

    def tasksets(self) -> Iterator[http.TasksetView]:
        return self._list(http.TasksetView, "/v1/tasksets")

    def taskset(self, name: str) -> http.TasksetView:
        return self._get(http.TasksetView, f"/v1/tasksets/{quote(name)}")

    def admission(self, admission_id: str) -> http.AdmissionView:
        return self._get(http.AdmissionView, f"/v1/admissions/{quote(admission_id)}")

    def wait_admissions(
        self,
        taskset: str,
        *,
        timeout: float = 600.0,
        progress: Callable[[http.TasksetView], None] | None = None,
    ) -> http.TasksetView:
        """Wait until no task of a taskset is SUBMITTED; raises TimeoutError naming how many still wait."""
        deadline = time.monotonic() + timeout
        while True:
            view = self.taskset(taskset)
            if progress is not None:
                progress(view)
            if view.submitted == 0:
                return view
            if time.monotonic() > deadline:
                raise TimeoutError(f"{view.submitted} tasks of {taskset!r} still wait after {timeout:.0f} s")
            time.sleep(POLL)

    # Runs

    def start_run(self, config: Document | dict[str, Any]) -> http.RunView:
        """Start a run from its config."""
        return self._post(http.RunView, "/v1/runs", config)

    def runs(self, *, state: str | None = None, kind: str | None = None) -> Iterator[http.RunView]:
        """Runs, newest first."""
        return self._list(http.RunView, "/v1/runs", state=state, kind=kind)

    def run(self, reference: str) -> http.RunView:
        """A run by id or name."""
        return self._get(http.RunView, f"/v1/runs/{quote(reference)}")

    def prioritise_run(self, reference: str, priority: Literal["low", "normal", "high"]) -> http.RunView:
        """Serve a run in another class from the next turn on."""
        order = http.PriorityOrder(priority=priority)
        return self._post(http.RunView, f"/v1/runs/{quote(reference)}/priority", order)

    def cancel_run(self, reference: str) -> http.RunView:
        return self._post(http.RunView, f"/v1/runs/{quote(reference)}/cancel")

    def steps(self, reference: str) -> Iterator[http.StepView]:
        """Training steps in order."""
        return self._list(http.StepView, f"/v1/runs/{quote(reference)}/steps")

    def policies(self, reference: str) -> Iterator[http.PolicyView]:
        """Policy versions, newest first."""
        return self._list(http.PolicyView, f"/v1/runs/{quote(reference)}/policies")

    def stats(self, reference: str) -> http.RunStats:
        return self._get(http.RunStats, f"/v1/runs/{quote(reference)}/stats")

    def latency(self, reference: str) -> http.Latency:
        """How fast the run's rollouts went through their states."""
        return self._get(http.Latency, f"/v1/runs/{quote(reference)}/latency")

    def ledger(self, reference: str) -> http.LedgerView:
        return self._get(http.LedgerView, f"/v1/runs/{quote(reference)}/ledger")

    def evaluation(self, reference: str) -> http.EvaluationView:
        return self._get(http.EvaluationView, f"/v1/runs/{quote(reference)}/evaluation")

    def wait_run(
        self,
        reference: str,
        *,
        timeout: float | None = None,
        progress: Callable[[http.RunView], None] | None = None,
    ) -> http.RunView:
        """Wait until a run has ended; raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = self.run(reference)
            if progress is not None:
                progress(view)
            if view.state not in ("PENDING", "RUNNING"):
                return view
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {reference!r} is still {view.state} after {timeout:.0f} s")
            time.sleep(POLL)

    # Rollouts, artifacts, fleet

    def rollouts(
        self, *, run: str | None = None, state: str | None = None, task: str | None = None
    ) -> Iterator[http.RolloutView]:
        """Rollouts, newest first."""
        return self._list(http.RolloutView, "/v1/rollouts", run=run, state=state, task=task)

    def rollout(self, rollout_id: str) -> http.RolloutDetail:
        return self._get(http.RolloutDetail, f"/v1/rollouts/{quote(rollout_id)}")

    def redrive(self, rollout_id: str) -> http.RolloutView:
        """Send a rollout that came to nothing back to the queue, under a new fence."""
        return self._post(http.RolloutView, f"/v1/rollouts/{quote(rollout_id)}/redrive")

    def dead_letters(self) -> tuple[http.BrokerLetter, ...]:
        """Messages that the broker gave up on, newest first; at most 500."""
        return self._get(http.Page[http.BrokerLetter], "/v1/dead-letters").items

    def trace(self, rollout_id: str) -> http.TraceView:
        return self._get(http.TraceView, f"/v1/rollouts/{quote(rollout_id)}/trace")

    def upload_artifact(self, data: bytes | Path) -> http.ArtifactView:
        """Store bytes, or a file piece by piece; named by content, so repeating it is harmless."""
        answer = self._transport.request("PUT", "/v1/artifacts", body=data, kind="application/octet-stream")
        return parse(http.ArtifactView, answer.json(), what="answer of /v1/artifacts")

    def download_artifact(self, digest: str) -> bytes:
        return self._transport.request("GET", f"/v1/artifacts/{quote(digest)}").content

    def run_object(self, reference: str, name: str) -> bytes:
        """An object of a run by its key beneath the run, such as `policies/3/config.json`."""
        return self._transport.request("GET", f"/v1/runs/{quote(reference)}/objects/{quote(name)}").content

    def fleet(self, *, ended: bool = False) -> tuple[http.RunnerView, ...]:
        return self._get(http.Page[http.RunnerView], "/v1/fleet", ended=str(ended).lower()).items

    def drain(self, node: str, *, draining: bool = True) -> tuple[http.RunnerView, ...]:
        """Grant nothing more to a node, or grant to it again."""
        order = http.DrainOrder(draining=draining)
        return self._post(http.Page[http.RunnerView], f"/v1/fleet/{quote(node, safe='')}/drain", order).items

    def queue(self) -> http.QueueView:
        """Who waits for what, and why."""
        return self._get(http.QueueView, "/v1/queue")

    def limit_tenant(self, tenant: str, limits: http.TenantLimits) -> http.TenantLimits:
        """Change what `limits` sets; what they are now."""
        return self._patch(http.TenantLimits, f"/v1/tenants/{quote(tenant, safe='')}/limits", limits)

    def limit_pool(self, pool: str, limits: http.PoolLimits) -> http.PoolLimits:
        """Change what `limits` sets; what they are now."""
        return self._patch(http.PoolLimits, f"/v1/pools/{quote(pool, safe='')}/limits", limits)

    def limit_image(self, image: str, limits: http.ImageLimits) -> http.ImageLimits:
        return self._patch(http.ImageLimits, f"/v1/images/{quote(image, safe='')}/limits", limits)

    def ready(self) -> http.Health:
        """Whether the registry can work; one that cannot answers with `ApiError`."""
        return self._get(http.Health, "/readyz")


__all__ = ["Client", "ClientError"]
