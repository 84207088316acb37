"""Groups are settled, and evaluation runs end when all of theirs are.

Guarantees: the leader alone settles, one transaction a run.
Does not: decide (`core.group.settle`)."""

from sqlalchemy.orm import Session

from tiltyard.contracts.run_config import EvaluationRun, TrainRun
from tiltyard.core.group import GroupRules, Verdict, settle
from tiltyard.core.rollout import Actor
from tiltyard.store import groups, leadership, policies, runs
from tiltyard.store.database import UnitOfWork, now
from tiltyard.store.groups import OpenGroup
from tiltyard.store.leadership import Leader
from tiltyard.store.runs import RunRow


def settle_groups(work: UnitOfWork, leader: Leader, run: RunRow) -> int:
    """Settle what can be settled of one run; how many groups that were."""
    with work() as session:
        newest = policies.latest(session, run.id)
        version, at, rules = newest.version if newest else 0, now(session), _rules(run)
        decided = [
            (group, settle(group.members, rules, version=version, deadline=group.deadline, now=at))
            for group in groups.open_groups(session, run.id)
        ]
        settled = [(g, decision) for g, decision in decided if decision.verdict is not Verdict.WAIT]
        doubtful = _doubtful(session, run, rules, version)
        if not settled and not doubtful:
            return 0
        leadership.still(session, leader)
        if settled:
            groups.close(session, settled)
        return len(settled) + sum(
            groups.reopen(session, g, settle(g.members, rules, version=version, deadline=None, now=at))
            for g in doubtful
        )


def _doubtful(session: Session, run: RunRow, rules: GroupRules, version: int) -> list[OpenGroup]:
    """READY groups that have grown too old or lost a member."""
    if not rules.trains:
        return []
    return groups.doubtful(session, run.id, oldest_allowed=version - rules.max_staleness)


def _rules(run: RunRow) -> GroupRules:
    if isinstance(run.config, TrainRun):
        return GroupRules(trains=True, min_valid=run.config.min_valid, max_staleness=run.config.max_staleness)
    return GroupRules(trains=False)


def finish_evaluation(work: UnitOfWork, leader: Leader, run: RunRow) -> bool:
    """Complete an evaluation run whose every ACTIVE task has been planned and settled, if there is any."""
    if not isinstance(run.config, EvaluationRun) or run.taskset_id is None:
        return False
    with work() as session:
        progress = groups.progress(session, run.id)
        if progress.open or not progress.planned or runs.unplanned_versions(session, run):
            return False
        leadership.still(session, leader)
        return runs.finish(session, run.id, "COMPLETED", actor=Actor.DISPATCHER)
