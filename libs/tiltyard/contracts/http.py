"""HTTP schemas of the registry's API under `/v1`.

Guarantees: additive within v1. Every list is a page with an opaque cursor.
Does not: hold examples of whole task specs; OpenAPI takes those from `docs/examples`."""

from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import Field, JsonValue

from tiltyard.contracts.document import Document, Fault
from tiltyard.contracts.records import AttemptRecord, GradingRecord, Span
from tiltyard.contracts.run_config import RunConfig
from tiltyard.contracts.task_spec import Name, PublicSpec, TaskSpec

T = TypeVar("T")
TaskState = Literal["SUBMITTED", "ACTIVE", "QUARANTINED"]
RunState = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]


class Page(Document, Generic[T]):
    """One page of a list; `next_cursor` is None on the last."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class Problem(Document):
    """An error (RFC 9457, `application/problem+json`)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str = ""
    faults: tuple[Fault, ...] = ()
    """For an invalid document: each fault with its path."""


class TaskSubmission(Document):
    """`POST /v1/tasks`: a task spec, and how it is to be admitted."""

    spec: TaskSpec
    tasksets: tuple[Name, ...] = Field(default=(), max_length=32)
    """Tasksets to add the version to; made when absent."""
    repeats: int = Field(default=3, ge=1, le=100)
    """How often admission runs the oracle and the no-op."""


class TaskBatch(Document):
    """`POST /v1/tasks:batch`: up to 500 submissions, all or none."""

    tasks: tuple[TaskSubmission, ...] = Field(min_length=1, max_length=500)


class AdmissionView(Document):
    """How a task version was admitted, or why it was not."""

    id: str
    state: Literal["QUEUED", "LEASED", "DONE", "FAILED"]
    repeats: int
    oracle_passes: int = 0
    oracle_failures: int = 0
    noop_passes: int = 0
    noop_failures: int = 0
    flake_bound: float | None = None
    """95 % upper bound on the rate at which the oracle would fail: 1 − 0.05^(1/repeats) after clean
    repeats."""
    report: str = ""
    """For the author: what to mend."""
    finished_at: datetime | None = None


class TaskView(Document):
    """A task version without its hidden parts."""

    id: str
    """The version: hex SHA-256 of the spec."""
    name: str
    state: TaskState
    spec: PublicSpec
    admission: AdmissionView | None = None
    tasksets: tuple[str, ...] = ()
    created_at: datetime


class TaskAccepted(Document):
    """What a submission became."""

    id: str
    name: str
    state: TaskState
    admission_id: str | None


class TasksetView(Document):
    name: str
    tasks: int
    active: int
    quarantined: int
    submitted: int


class PolicyView(Document):
    """One policy version of a run."""

    version: int
    state: Literal["PUBLISHED", "WITHDRAWN"]
    step: int | None
    prefix: str
    created_at: datetime


class RunView(Document):
    id: str
    name: str
    kind: Literal["sft", "train", "evaluation"]
    state: RunState
    config: RunConfig
    reason: str = ""
    """Why it failed or was cancelled."""
    step: int = 0
    """Training steps committed."""
    policy_version: int | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class StepView(Document):
    """One point of a run's curves."""

    step: int
    state: Literal["STARTED", "COMMITTED", "WITHDRAWN"]
    policy_version: int | None
    metrics: dict[str, float]
    started_at: datetime
    committed_at: datetime | None


class RunStats(Document):
    """What a run has come to, counted from its rows."""

    rollouts: dict[str, int]
    """By state."""
    groups: dict[str, int]
    """By state."""
    failures: dict[str, int]
    """Ended attempts by outcome, without the valid ones."""
    rewards: dict[str, int]
    """Selected gradings by reward, in tenths ("0.0" … "1.0")."""
    mean_reward: float | None
    valid_share: float | None
    filter_rate: float | None
    rollouts_per_second: float | None
    """Over the last 30 seconds."""
    policy_version: int | None


class Latency(Document):
    """How fast a run's rollouts went through their states, from their transitions."""

    ended: int
    """Rollouts that have reached a terminal state by scoring."""
    ended_per_second: float | None
    """Those, over the time from the first being planned to the last ending."""
    grant_to_scored_ms: dict[str, float]
    """Percentiles `p50` and `p99`, over each rollout's last grant; empty while nothing is scored."""
    queued_to_claimed_ms: dict[str, float]
    """Percentiles `p50` and `p99`, from the last time that it was queued."""


class TaskScore(Document):
    """One task's valid rewards in an evaluation run."""

    task: str
    name: str
    valid: int
    passed: int
    mean: float


class EvaluationView(Document):
    """Result of an evaluation run: mean reward over tasks, with a 95 % bootstrap interval over tasks."""

    run_id: str
    policy: str
    tasks: int
    rollouts: int
    valid: int
    mean: float | None
    low: float | None
    high: float | None
    scores: tuple[TaskScore, ...] = ()


class Discrepancy(Document):
    """One disagreement between records that are written separately."""

    rule: str
    row: str
    detail: str


class LedgerView(Document):
    """The reconciliation of a run's records."""

    run_id: str
    planned_groups: int
    created: int
    by_state: dict[str, int]
    trained_steps: int
    balanced: bool
    discrepancies: tuple[Discrepancy, ...] = ()
    checked_at: datetime


class RolloutView(Document):
    id: str
    run_id: str
    group_id: str
    task: str
    """Task version."""
    task_name: str
    member: int
    state: str
    fence: int
    reward: float | None = None
    outcome: str | None = None
    reason: str = ""
    policy_version: int | None = None
    trace_id: str | None = None
    created_at: datetime
    updated_at: datetime


class BrokerLetter(Document):
    """A message that the broker gave up on; the rows that it spoke of are announced again by themselves."""

    id: int
    queue: str
    """Where it died."""
    reason: str
    """RabbitMQ's word: rejected, delivery_limit, expired, maxlen."""
    headers: dict[str, JsonValue]
    body: str
    created_at: datetime


class TransitionView(Document):
    seq: int
    start: str | None
    end: str
    fence: int
    actor: str
    reason: str
    at: datetime


class RolloutDetail(Document):
    """A rollout with everything that is kept about it."""

    rollout: RolloutView
    transitions: tuple[TransitionView, ...]
    attempts: tuple[AttemptRecord, ...] = ()
    gradings: tuple[GradingRecord, ...] = ()
    missing: tuple[str, ...] = ()
    """Records that a row points to and the object store does not give, each with the error."""


class TraceView(Document):
    """Every span that is kept of a rollout, of all attempts."""

    rollout_id: str
    spans: tuple[Span, ...]


class RunnerView(Document):
    incarnation: str
    node: str
    pool: str
    alive: bool
    slots: int
    cpu: float = 0.0
    memory_mb: int = 0
    gpu: int = 0
    aboard: int
    """Rollouts granted to it that have not ended; `used_…` is what they take."""
    used_slots: int = 0
    used_cpu: float = 0.0
    used_memory_mb: int = 0
    used_gpu: int = 0
    draining: bool
    version: str
    last_heartbeat: datetime


class DrainOrder(Document):
    """`POST /v1/fleet/{node}/drain`."""

    draining: bool = True
    """False: grant to the node again."""


class PriorityOrder(Document):
    """`POST /v1/runs/{run}/priority`."""

    priority: Literal["low", "normal", "high"]


class TenantLimits(Document):
    """`PATCH /v1/tenants/{tenant}/limits`: what is left out stays as it is; null: no cap."""

    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Part of a contended pool, against other tenants."""
    max_running: int | None = Field(default=None, ge=0, lt=2**31)
    """Most rollouts granted at once."""
    max_queued: int | None = Field(default=None, ge=0, lt=2**31)
    """QUEUED rollouts at which no new run is taken (429)."""


class PoolLimits(Document):
    """`PATCH /v1/pools/{pool}/limits`: what is left out stays as it is; null: no cap."""

    max_running: int | None = Field(default=None, ge=0, lt=2**31)
    """Most rollouts granted at once."""
    headroom: int = Field(default=0, ge=0, lt=2**31)
    """Slots that only runs of the class `high` may take."""


class ImageLimits(Document):
    """`PATCH /v1/images/{image}/limits`; null: no cap."""

    max_running: int | None = Field(ge=0, lt=2**31)
    """Most rollouts of the image granted at once, in all pools together."""


class PoolView(Document):
    """Runners that can take the same work."""

    name: str
    runners: int
    draining: int
    desired_runners: int
    """That could hold all that is aboard or may be granted."""
    queued: int
    aboard: int
    max_running: int | None
    headroom: int
    """Slots that are kept for runs of the class `high`."""
    oldest_queued_at: datetime | None
    slots: int
    cpu: float
    memory_mb: int
    gpu: int
    used_slots: int
    used_cpu: float
    used_memory_mb: int
    used_gpu: int


class QueueEntry(Document):
    """One run in its pool. Shares are dominant shares of the pool, from 0 to 1."""

    run: str
    """Its name; empty for another tenant's."""
    run_id: str
    tenant: str
    pool: str
    priority: Literal["low", "normal", "high"]
    served_as: Literal["low", "normal", "high"]
    """Its class as waiting and preemptions have raised it."""
    queued: int
    backing_off: int
    """Of `queued`, those that wait out a failure."""
    aboard: int
    oldest_wait_seconds: float | None
    share: float
    tenant_share: float
    tenant_due: float | None
    """What its weight gives the tenant among those who wait; None when it does not wait."""
    deficit_seconds: float
    """Share-seconds that the run is owed by its tenant's other runs."""
    tenant_deficit_seconds: float
    """Share-seconds that the tenant is owed by the others."""
    waits_for: str
    """Why what is queued is not granted."""


class QueueView(Document):
    """Who waits for what, and why."""

    pools: tuple[PoolView, ...]
    runs: tuple[QueueEntry, ...]


class ArtifactView(Document):
    """An uploaded artifact, named by its content."""

    digest: str
    size: int


class Health(Document):
    status: Literal["ok", "unready"]
    checks: dict[str, str] = Field(default_factory=dict)
