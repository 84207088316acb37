"""Groups are settled, and evaluation runs end when all of theirs are.

Guarantees: the leader alone settles, one transaction a run.
Does not: decide (`core.group.settle`)."""

from tiltyard.contracts.run_config import EvaluationRun, TrainRun
from tiltyard.core.group import GroupRules, Verdict, settle
from tiltyard.core.rollout import Actor
from tiltyard.store import groups, leadership, policies, runs
from tiltyard.store.database import UnitOfWork, now
from tiltyard.store.leadership import Leader
from tiltyard.store.runs import RunRow


def settle_groups(work: UnitOfWork, leader: Leader, run: RunRow) -> int:
    """Settle what can be settled of one run; how many groups that were."""
    with work() as session:
        leadership.still(session, leader)
        newest = policies.latest(session, run.id)
        version, at, rules = newest.version if newest else 0, now(session), _rules(run)
        decided = [
            (group, settle(group.members, rules, version=version, deadline=group.deadline, now=at))
            for group in groups.open_groups(session, run.id)
        ]
        settled = [(g, decision) for g, decision in decided if decision.verdict is not Verdict.WAIT]
        if settled:
            groups.close(session, settled)
        aged = 0
        if isinstance(run.config, TrainRun) and newest:
            aged = groups.age_out(session, run.id, oldest_allowed=version - run.config.max_staleness)
        return len(settled) + aged


def _rules(run: RunRow) -> GroupRules:
    if isinstance(run.config, TrainRun):
        return GroupRules(trains=True, min_valid=run.config.min_valid, max_staleness=run.config.max_staleness)
    return GroupRules(trains=False)


def finish_evaluation(work: UnitOfWork, leader: Leader, run: RunRow) -> bool:
    """Complete an evaluation run whose every ACTIVE task has been planned and settled, if there is any."""
    if not isinstance(run.config, EvaluationRun) or run.taskset_id is None:
        return False
    with work() as session:
        leadership.still(session, leader)
        progress = groups.progress(session, run.id)
        if progress.open or not progress.planned or runs.unplanned_versions(session, run):
            return False
        return runs.finish(session, run.id, "COMPLETED", actor=Actor.DISPATCHER)
