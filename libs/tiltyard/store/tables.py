"""Every table of the platform.

Guarantees: what must not be lost is a row here; times are the database's, in UTC.
Does not: hold large things; those are objects, and rows hold their keys."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Interval,
    MetaData,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tiltyard.core.rollout import State

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
NOW = text("clock_timestamp()")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy
        str: Text,
        datetime: DateTime(timezone=True),
        timedelta: Interval,
        dict[str, Any]: JSONB,
        int: BigInteger,
    }


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class Tenant(Base):
    """Who owns tasks and runs, and what part of a contended pool is theirs."""

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint("max_running >= 0 AND max_queued >= 0", name="caps"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[float] = mapped_column(server_default="1")
    max_running: Mapped[int | None]
    """Most rollouts aboard at once; None: no cap."""
    max_queued: Mapped[int | None]
    """QUEUED rollouts at which no new run is taken; None: no cap."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class IdempotencyKey(Base):
    """The answer given to a POST, so that its repetition gets the same."""

    __tablename__ = "idempotency_keys"
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str]
    status: Mapped[int]
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Task(Base):
    """A name that versions belong to."""

    __tablename__ = "tasks"
    __table_args__ = (Index("uq_tasks_tenant_id_name", "tenant_id", "name", unique=True),)
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TaskVersion(Base):
    """Immutable content, named by its hash within its task; `public` is what a runner may read."""

    __tablename__ = "task_versions"
    __table_args__ = (
        Index("uq_task_versions_task_id_digest", "task_id", "digest", unique=True),
        _one_of("state", "SUBMITTED", "ACTIVE", "QUARANTINED"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    """Row id; `digest` is the name that people use."""
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    digest: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="SUBMITTED")
    public: Mapped[dict[str, Any]]
    difficulty: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TaskSecret(Base):
    """Verifier and oracle of a version: a table of its own, so that runners can be denied it."""

    __tablename__ = "task_secrets"
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"), primary_key=True)
    hidden: Mapped[dict[str, Any]]
    digest: Mapped[str]


class Taskset(Base):
    """A named selection of task versions."""

    __tablename__ = "tasksets"
    __table_args__ = (Index("uq_tasksets_tenant_id_name", "tenant_id", "name", unique=True),)
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TasksetMember(Base):
    __tablename__ = "taskset_members"
    taskset_id: Mapped[str] = mapped_column(ForeignKey("tasksets.id"), primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"), primary_key=True)


class Admission(Base):
    """A job: whether a task version is fit to be trained on."""

    __tablename__ = "admissions"
    __table_args__ = (
        _one_of("state", "QUEUED", "LEASED", "DONE", "FAILED"),
        Index("ix_admissions_waiting", "created_at", postgresql_where=text("state IN ('QUEUED', 'LEASED')")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"), index=True)
    repeats: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="QUEUED")
    number: Mapped[int] = mapped_column(server_default="0")
    """Raised by each claim: the lease's number."""
    holder: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    announced_at: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(server_default="0")
    oracle_passes: Mapped[int] = mapped_column(server_default="0")
    oracle_failures: Mapped[int] = mapped_column(server_default="0")
    noop_passes: Mapped[int] = mapped_column(server_default="0")
    noop_failures: Mapped[int] = mapped_column(server_default="0")
    report: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]


class Run(Base):
    """One training or evaluation job. `holder` and `fence` are the trainer's lease on it."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("uq_runs_tenant_id_name", "tenant_id", "name", unique=True),
        _one_of("state", "PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"),
        _one_of("kind", "sft", "train", "evaluation"),
        Index("ix_runs_living", "created_at", postgresql_where=text("state IN ('PENDING', 'RUNNING')")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="PENDING")
    reason: Mapped[str] = mapped_column(server_default="")
    config: Mapped[dict[str, Any]]
    taskset_id: Mapped[str | None] = mapped_column(ForeignKey("tasksets.id"))
    policy_run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"))
    """The run whose policy it starts from, or evaluates."""
    policy_version: Mapped[int | None]
    """The version of `policy_run_id`, fixed when the run was made."""
    holder: Mapped[str | None]
    fence: Mapped[int] = mapped_column(server_default="0")
    lease_until: Mapped[datetime | None]
    groups_planned: Mapped[int] = mapped_column(server_default="0")
    """Draws made from the sampler; the next group takes this index."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    deadline: Mapped[datetime]


class Group(Base):
    """G rollouts of one task version, settled together."""

    __tablename__ = "groups"
    __table_args__ = (
        Index("uq_groups_run_id_index", "run_id", "index", unique=True),
        _one_of("state", "OPEN", "READY", "FILTERED", "STALE", "EVALUATED", "TRAINED", "CANCELLED"),
        Index("ix_groups_open", "run_id", "index", postgresql_where=text("state = 'OPEN'")),
        Index("ix_groups_ready", "run_id", "index", postgresql_where=text("state = 'READY'")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"))
    index: Mapped[int]
    size: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="OPEN")
    reason: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    patience: Mapped[timedelta] = mapped_column(server_default=text("interval '10 minutes'"))
    """How long stragglers are waited for."""
    deadline: Mapped[datetime | None]
    """`patience` after its first grant; None before that, and while members were preempted."""
    settled_at: Mapped[datetime | None]


class Rollout(Base):
    """One planned episode. `state` and `fence` are written by `store.rollouts` alone."""

    __tablename__ = "rollouts"
    __table_args__ = (
        Index("uq_rollouts_group_id_member", "group_id", "member", unique=True),
        _one_of("state", *(str(s) for s in State)),
        Index("ix_rollouts_queued", "run_id", "id", postgresql_where=text("state = 'QUEUED'")),
        Index(
            "ix_rollouts_aboard",
            "incarnation",
            postgresql_where=text("state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')"),
        ),
        Index("ix_rollouts_run_id_state", "run_id", "state"),
        {"postgresql_with": {"fillfactor": 70}},
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"))
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"))
    member: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="QUEUED")
    fence: Mapped[int] = mapped_column(server_default="0")
    seq: Mapped[int] = mapped_column(server_default="0")
    """Number of its last transition."""
    incarnation: Mapped[str | None]
    granted_at: Mapped[datetime | None]
    queued_at: Mapped[datetime] = mapped_column(server_default=NOW)
    """When it was last queued."""
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]
    """Schedule-to-start, counted from `queued_at`."""
    slots: Mapped[int] = mapped_column(server_default="1")
    """With `cpu`, `memory_mb` and `gpu`: what it takes of its runner."""
    cpu: Mapped[float] = mapped_column(server_default="0")
    memory_mb: Mapped[int] = mapped_column(server_default="0")
    gpu: Mapped[int] = mapped_column(server_default="0")
    rank: Mapped[int | None]
    """Class in which its last grant was served; 0 is the highest."""
    preemptions: Mapped[int] = mapped_column(server_default="0")
    """How often it was told to yield; free of charge."""
    yields_to: Mapped[str | None] = mapped_column(ForeignKey("runs.id"))
    """While PREEMPTING: the run that its place is kept for."""
    infrastructure_failures: Mapped[int] = mapped_column(server_default="0")
    losses: Mapped[int] = mapped_column(server_default="0")
    """Incarnations lost while it was aboard."""
    alone: Mapped[bool] = mapped_column(server_default="false")
    """Must be alone on its next runner."""
    reward: Mapped[float | None]
    """Of the selected grading; None when there is none or it is invalid."""
    oldest_version: Mapped[int | None]
    """Oldest policy version among the tokens of its produced attempt."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Transition(Base):
    """Append-only: each move of each rollout."""

    __tablename__ = "transitions"
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[str | None]
    end: Mapped[str]
    fence: Mapped[int]
    actor: Mapped[str]
    reason: Mapped[str] = mapped_column(server_default="")
    at: Mapped[datetime] = mapped_column(server_default=NOW)


class Attempt(Base):
    """One try at a rollout, named by its fence."""

    __tablename__ = "attempts"
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    incarnation: Mapped[str]
    traceparent: Mapped[str]
    granted_at: Mapped[datetime] = mapped_column(server_default=NOW)
    claimed_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(server_default="")
    artifact: Mapped[str | None]
    """Key of its AttemptRecord."""
    sha256: Mapped[str | None]
    oldest_version: Mapped[int | None]
    newest_version: Mapped[int | None]


class Grading(Base):
    """A job: one evaluation of a produced attempt."""

    __tablename__ = "gradings"
    __table_args__ = (
        _one_of("state", "QUEUED", "LEASED", "DONE", "FAILED", "CANCELLED"),
        Index("uq_gradings_selected", "rollout_id", unique=True, postgresql_where=text("selected")),
        Index("ix_gradings_waiting", "created_at", postgresql_where=text("state IN ('QUEUED', 'LEASED')")),
        Index("ix_gradings_rollout_id", "rollout_id"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"))
    fence: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="QUEUED")
    number: Mapped[int] = mapped_column(server_default="0")
    holder: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    announced_at: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(server_default="0")
    verifier: Mapped[str | None]
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(server_default="")
    reward: Mapped[float | None]
    artifact: Mapped[str | None]
    selected: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]


class Score(Base):
    """One component of one grading."""

    __tablename__ = "scores"
    grading_id: Mapped[str] = mapped_column(ForeignKey("gradings.id"), primary_key=True)
    component: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    weight: Mapped[float]
    gate: Mapped[bool]
    tier: Mapped[int]
    outcome: Mapped[str]


class RunnerRow(Base):
    """One incarnation of a runner, with its heartbeat."""

    __tablename__ = "runners"
    __table_args__ = (
        Index("ix_runners_alive", "node", postgresql_where=text("alive")),
        Index("ix_runners_pool", "pool"),
        {"postgresql_with": {"fillfactor": 50}},
    )
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str]
    pool: Mapped[str] = mapped_column(server_default="default")
    slots: Mapped[int]
    cpu: Mapped[float] = mapped_column(server_default="0")
    memory_mb: Mapped[int] = mapped_column(server_default="0")
    gpu: Mapped[int] = mapped_column(server_default="0")
    alive: Mapped[bool] = mapped_column(server_default="true")
    draining: Mapped[bool] = mapped_column(server_default="false")
    version: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    last_heartbeat: Mapped[datetime] = mapped_column(server_default=NOW)
    ended_at: Mapped[datetime | None]
    reason: Mapped[str] = mapped_column(server_default="")


class PoolRow(Base):
    """A cap on a pool; a pool without a row has none."""

    __tablename__ = "pools"
    __table_args__ = (CheckConstraint("max_running >= 0", name="cap"),)
    name: Mapped[str] = mapped_column(primary_key=True)
    max_running: Mapped[int | None]
    """Most rollouts aboard at once; None: no cap."""


class Account(Base):
    """How far a tenant, or one of its runs, is behind its share of a pool; the leader alone writes it."""

    __tablename__ = "accounts"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)
    pool: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    run_id: Mapped[str] = mapped_column(primary_key=True)
    """Empty: the tenant's own account."""
    deficit: Mapped[float] = mapped_column(server_default="0")
    """Share-seconds that it is owed."""
    held: Mapped[float] = mapped_column(server_default="0")
    """Dominant share after the last turn."""
    waited: Mapped[bool] = mapped_column(server_default="false")
    """Whether the last turn left work of it waiting."""
    granted_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class PolicyVersion(Base):
    """Weights of a run, published under an integer that only grows."""

    __tablename__ = "policy_versions"
    __table_args__ = (_one_of("state", "PUBLISHED", "WITHDRAWN"),)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(server_default="PUBLISHED")
    step: Mapped[int | None]
    prefix: Mapped[str]
    """Objects under it are a Hugging Face checkpoint folder."""
    files: Mapped[dict[str, Any]]
    """File name → hex SHA-256."""
    checkpoint: Mapped[bool] = mapped_column(server_default="false")
    """Whether the optimizer's state lies beside the weights."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TrainingStep(Base):
    """Step n of a run: recorded with its groups before it is computed."""

    __tablename__ = "training_steps"
    __table_args__ = (_one_of("state", "STARTED", "COMMITTED", "WITHDRAWN"),)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(server_default="STARTED")
    fence: Mapped[int]
    policy_version: Mapped[int | None]
    manifest: Mapped[str | None]
    metrics: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    traceparent: Mapped[str] = mapped_column(server_default="")
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    committed_at: Mapped[datetime | None]


class StepGroup(Base):
    """The ordered list of a step's groups; a group stands in one step at most."""

    __tablename__ = "step_groups"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"), unique=True)


class Leadership(Base):
    """Who leads a loop; the epoch stands in every write of the leader."""

    __tablename__ = "leaderships"
    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    epoch: Mapped[int]
    version: Mapped[str] = mapped_column(server_default="")
    """Of Tiltyard, as the holder has it installed; empty: untold."""
    lease_until: Mapped[datetime]
    trusted_since: Mapped[datetime] = mapped_column(server_default=NOW)
    """Since when silence may be counted against a runner."""


class DeadLetter(Base):
    """A message that the broker gave up on, kept for people."""

    __tablename__ = "dead_letters"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    queue: Mapped[str]
    reason: Mapped[str]
    headers: Mapped[dict[str, Any]]
    body: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
