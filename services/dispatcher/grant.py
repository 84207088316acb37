"""Queued rollouts are granted to runners with free slots, and work is announced.

Guarantees: grants go only into free capacity; what is announced is a row already, so a lost hint costs
latency.
Does not: choose runners (`core.fleet.allot`)."""

from datetime import timedelta

from opentelemetry import trace
from opentelemetry.context import Context

from tiltyard.contracts.messages import ADMIT, GRADE, runner_topic
from tiltyard.core.fleet import allot
from tiltyard.queue import Publisher
from tiltyard.store import admissions, fleet, gradings, leadership, rollouts
from tiltyard.store.database import UnitOfWork
from tiltyard.store.leadership import Leader
from tiltyard.store.rollouts import Granting
from tiltyard.telemetry.propagation import inject

MOST_AT_ONCE = 512
ANNOUNCE_AGAIN = timedelta(seconds=30)
tracer = trace.get_tracer("tiltyard.dispatcher")


def grant(work: UnitOfWork, leader: Leader, publisher: Publisher) -> int:
    """Grant what fits and wake the runners it went to; how many grants."""
    with work() as session:
        leadership.still(session, leader)
        runners = [r for r in fleet.alive(session) if r.free]
        free = sum(r.free for r in runners)
        waiting = rollouts.queued(session, min(free, MOST_AT_ONCE)) if free else []
        keys = {q.key.rollout_id: q.key for q in waiting}
        grants = [
            Granting(key=keys[rollout], incarnation=incarnation, traceparent=_new_trace(rollout, incarnation))
            for incarnation, given in allot([(q.key.rollout_id, q.alone) for q in waiting], runners).items()
            for rollout in given
        ]
        granted = rollouts.grant(session, grants)
    if granted:
        publisher.announce(*sorted({runner_topic(g.incarnation) for g in grants}))
    return len(granted)


def _new_trace(rollout_id: str, incarnation: str) -> str:
    """The root span of a new attempt's trace."""
    attributes = {"tiltyard.rollout.id": rollout_id, "tiltyard.runner.incarnation": incarnation}
    with tracer.start_as_current_span("grant", context=Context(), attributes=attributes):
        return inject()


def announce_jobs(work: UnitOfWork, leader: Leader, publisher: Publisher) -> int:
    """Announce gradings and admissions that wait unannounced, or for too long; how many."""
    with work() as session:
        leadership.still(session, leader)
        grade = gradings.unannounced(session, ANNOUNCE_AGAIN)
        admit = admissions.unannounced(session, ANNOUNCE_AGAIN)
    if grade:
        publisher.enqueue(GRADE, grade)
    if admit:
        publisher.enqueue(ADMIT, admit)
    return len(grade) + len(admit)
