"""How many groups a run may add to what it has in flight.

Guarantees: in flight + ready + training ≤ batch × (max staleness + 1), counted from rows, so a crash cannot
inflate it; a run never plans more than its remaining steps can train on.
Does not: choose the tasks (`core.sampler`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a run's rows say, in groups."""

    open: int
    ready: int
    steps_done: int
    """Training steps recorded, committed or under way."""
    planned: int
    training: int = 0
    """Groups of a step under way: they leave no room before its policy version is published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """The shape of a training run: `batch` groups a step, `steps` steps, staleness in policy versions."""

    batch: int
    steps: int
    max_staleness: int


def room(plan: TrainPlan, progress: Progress) -> int:
    """How many groups a training run may add now.

    Source of the bound: the admission formula of AReaL (arXiv 2505.24298), counted in groups."""
    living = progress.open + progress.ready
    needed = (plan.steps - progress.steps_done) * plan.batch - living
    return max(0, min(plan.batch * (plan.max_staleness + 1) - living - progress.training, needed))


def room_in_evaluation(*, waiting: int, progress: Progress, window: int) -> int:
    """How many groups an evaluation run may add now: `waiting` tasks have none yet, `window` may be open."""
    return max(0, min(waiting, window - progress.open))
