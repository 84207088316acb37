"""New groups are planned while a run has room for them.

Guarantees: what is in flight derives from rows, so refill needs no message and a crash inflates nothing.
Does not: choose tasks or count room itself (`core.sampler`, `core.plan`)."""

from datetime import timedelta

from sqlalchemy.orm import Session

from tiltyard.contracts.run_config import EvaluationRun, SftRun, TrainRun, demand_of
from tiltyard.core.plan import TrainPlan, room, room_in_evaluation
from tiltyard.core.sampler import draws
from tiltyard.store import groups, leadership, policies, rollouts, runs, tenants
from tiltyard.store.database import UnitOfWork
from tiltyard.store.leadership import Leader
from tiltyard.store.rollouts import NewGroup
from tiltyard.store.runs import RunRow


def plan_groups(work: UnitOfWork, leader: Leader, run: RunRow) -> int:
    """Plan what one run has room for; how many rollouts that made."""
    if isinstance(run.config, SftRun):
        return 0
    with work() as session:
        versions = _next_versions(session, run, run.config)
        if not versions or tenants.is_full(session, run.tenant_id):
            return 0
        leadership.still(session, leader)
        planned = runs.count_planned(session, run.id, len(versions))
        if planned is None:
            return 0
        runs.start(session, run.id)
        first = planned - len(versions)
        return len(rollouts.plan(session, _groups(session, run, run.config, versions, first)))


def _next_versions(session: Session, run: RunRow, config: TrainRun | EvaluationRun) -> list[str]:
    """Task versions of the groups to plan now, in order; none while no task of the taskset is ACTIVE."""
    progress = groups.progress(session, run.id)
    if isinstance(config, EvaluationRun):
        waiting = runs.unplanned_versions(session, run)
        return waiting[: room_in_evaluation(waiting=len(waiting), progress=progress, window=config.window)]
    if run.state != "RUNNING" or policies.latest(session, run.id) is None:
        return []
    shape = TrainPlan(batch=config.groups_per_step, steps=config.steps, max_staleness=config.max_staleness)
    count = room(shape, progress)
    active = runs.planned_versions(session, run) if count else []
    return draws(active, seed=config.seed, start=progress.planned, count=count) if active else []


def _groups(
    session: Session, run: RunRow, config: TrainRun | EvaluationRun, versions: list[str], first: int
) -> list[NewGroup]:
    needs = runs.needs(session, versions)
    return [
        NewGroup(
            run_id=run.id,
            version_id=version,
            index=first + i,
            size=config.group_size if isinstance(config, TrainRun) else config.samples,
            deadline_after=timedelta(seconds=config.rollouts.group_deadline_seconds),
            expires_after=timedelta(seconds=config.rollouts.schedule_to_start_seconds),
            demand=demand_of(config.rollouts.demand, *needs[version]),
        )
        for i, version in enumerate(versions)
    ]
