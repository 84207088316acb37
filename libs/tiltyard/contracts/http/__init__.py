"""HTTP schemas of the registry's API under `/v1`.

Guarantees: additive within v1. Every list is a page with an opaque cursor.
Does not: hold examples of whole task specs; OpenAPI takes those from `docs/examples`."""

from .answer import Health, Page, Problem
from .fleet import (
    DrainOrder,
    ImageLimits,
    NodeHealth,
    PoolLimits,
    PoolView,
    PriorityOrder,
    QueueEntry,
    QueueView,
    RunnerView,
    TenantLimits,
)
from .rollouts import BrokerLetter, RolloutDetail, RolloutView, TraceView, TransitionView
from .runs import (
    Discrepancy,
    EvaluationView,
    Latency,
    LedgerView,
    PolicyView,
    RunState,
    RunStats,
    RunView,
    StepView,
    TaskScore,
)
from .tasks import (
    AdmissionView,
    ArtifactView,
    TaskAccepted,
    TaskBatch,
    TasksetView,
    TaskState,
    TaskSubmission,
    TaskView,
)

__all__ = [
    "AdmissionView",
    "ArtifactView",
    "BrokerLetter",
    "Discrepancy",
    "DrainOrder",
    "EvaluationView",
    "Health",
    "ImageLimits",
    "Latency",
    "LedgerView",
    "NodeHealth",
    "Page",
    "PolicyView",
    "PoolLimits",
    "PoolView",
    "PriorityOrder",
    "Problem",
    "QueueEntry",
    "QueueView",
    "RolloutDetail",
    "RolloutView",
    "RunState",
    "RunStats",
    "RunView",
    "RunnerView",
    "StepView",
    "TaskAccepted",
    "TaskBatch",
    "TaskScore",
    "TaskState",
    "TaskSubmission",
    "TaskView",
    "TasksetView",
    "TenantLimits",
    "TraceView",
    "TransitionView",
]
