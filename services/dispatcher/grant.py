"""Queued rollouts are granted to runners with free capacity, and work is announced.

Guarantees: grants go only into free capacity; what is announced is a row already, so a lost hint costs
latency.
Does not: decide whose turn it is (`core.deal`)."""

from datetime import timedelta

from opentelemetry import trace
from opentelemetry.context import Context
from sqlalchemy.orm import Session

from tiltyard.contracts.messages import ADMIT, GRADE, runner_topic
from tiltyard.core.accounts import accrued, closed
from tiltyard.core.deal import deal_all
from tiltyard.core.fairness import Grant
from tiltyard.queue import Publisher
from tiltyard.store import accounts, admissions, gradings, leadership, pools, rollouts
from tiltyard.store.database import UnitOfWork
from tiltyard.store.leadership import Leader
from tiltyard.store.pools import Market
from tiltyard.store.rollouts import Granting
from tiltyard.telemetry.propagation import inject

ANNOUNCE_AGAIN = timedelta(seconds=30)
tracer = trace.get_tracer("tiltyard.dispatcher")


def grant(work: UnitOfWork, leader: Leader, publisher: Publisher) -> int:
    """Grant what fits, pool by pool, and wake the runners it went to; how many grants."""
    with work() as session:
        leadership.still(session, leader)
        market = pools.market(session)
        grants = _deal(session, market)
        granted = rollouts.grant(
            session,
            [
                Granting(
                    key=market.keys[g.rollout],
                    incarnation=g.incarnation,
                    traceparent=_new_trace(g.rollout, g.incarnation),
                    rank=g.rank,
                )
                for g in grants
            ],
        )
    if granted:
        publisher.announce(*sorted({runner_topic(g.incarnation) for g in grants}))
    return len(granted)


def _deal(session: Session, market: Market) -> list[Grant]:
    """The grants of every pool, with its accounts brought up to date."""
    concerned = [
        accrued(pool, seconds=market.seconds(pool.name))
        for pool in market.pools
        if pool.name in market.since or any(run.waiting for run in pool.runs)
    ]
    grants: list[Grant] = []
    for pool, dealt in deal_all(concerned, now=market.at):
        accounts.save(session, closed(pool, dealt.grants), dealt.grants, at=market.at)
        grants += dealt.grants
    return grants


def _new_trace(rollout_id: str, incarnation: str) -> str:
    """The root span of a new attempt's trace."""
    attributes = {"tiltyard.rollout.id": rollout_id, "tiltyard.runner.incarnation": incarnation}
    with tracer.start_as_current_span("grant", context=Context(), attributes=attributes):
        return inject()


def announce_jobs(work: UnitOfWork, leader: Leader, publisher: Publisher) -> int:
    """Announce gradings and admissions that wait unannounced, or for too long; how many."""
    with work() as session:
        grade = gradings.unannounced(session, ANNOUNCE_AGAIN)
        admit = admissions.unannounced(session, ANNOUNCE_AGAIN)
        if grade or admit:
            leadership.still(session, leader)
    if grade:
        publisher.enqueue(GRADE, grade)
    if admit:
        publisher.enqueue(ADMIT, admit)
    return len(grade) + len(admit)
