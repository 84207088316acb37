"""Every table of the platform.

Guarantees: what must not be lost is a row here; times are the database's, in UTC.
Does not: hold large things; those are objects, and rows hold their keys."""

from .attempts import Attempt, Grading, Score
from .fleet import Account, DeadLetter, ImageRow, Leadership, PoolRow, RunnerRow
from .rollouts import Group, Rollout, Run, Transition
from .schema import NAMES, NOW, Base
from .tasks import Admission, Task, TaskSecret, Taskset, TasksetMember, TaskVersion
from .tenants import IdempotencyKey, Tenant
from .training import PolicyVersion, StepGroup, TrainingStep

__all__ = [
    "NAMES",
    "NOW",
    "Account",
    "Admission",
    "Attempt",
    "Base",
    "DeadLetter",
    "Grading",
    "Group",
    "IdempotencyKey",
    "ImageRow",
    "Leadership",
    "PolicyVersion",
    "PoolRow",
    "Rollout",
    "Run",
    "RunnerRow",
    "Score",
    "StepGroup",
    "Task",
    "TaskSecret",
    "TaskVersion",
    "Taskset",
    "TasksetMember",
    "Tenant",
    "TrainingStep",
    "Transition",
]
