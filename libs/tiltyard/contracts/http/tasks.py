"""Tasks: what is submitted, what admission showed, the tasksets, uploaded artifacts."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from tiltyard.contracts.document import Document
from tiltyard.contracts.task_spec import Name, PublicSpec, TaskSpec

TaskState = Literal["SUBMITTED", "ACTIVE", "QUARANTINED"]


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


class ArtifactView(Document):
    """An uploaded artifact, named by its content."""

    digest: str
    size: int
