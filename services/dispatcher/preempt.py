"""Work of lower classes yields to what the turn's grants found no room for.

Guarantees: decided on the rows after the grants, by the rules of the next turn, and written in the same
transaction; whoever yields is told by its runner's next heartbeat.
Does not: choose (`core.preemption`), nor wait: what has not yielded in its grace is the reaper's."""

from sqlalchemy.orm import Session

from tiltyard.core.deal import deal_all
from tiltyard.core.fairness import Dealt, Pool
from tiltyard.core.preemption import CURABLE, preempt
from tiltyard.store import leadership, pools, preemptions
from tiltyard.store.database import UnitOfWork
from tiltyard.store.leadership import Leader
from tiltyard.store.pools import Market

HEADS = 64
"""Rollouts of all runs together that are looked at when nothing is free."""


def take_back(work: UnitOfWork, leader: Leader) -> int:
    """Tell rollouts to yield, pool by pool; how many."""
    with work() as session:
        leadership.still(session, leader)
        if not preemptions.thinkable(session):
            return 0
        market = pools.market(session, fewest=HEADS)
        dealt = deal_all(market.pools, now=market.at)
        return sum(_take_back(session, market, pool, d) for pool, d in dealt)


def _take_back(session: Session, market: Market, pool: Pool, dealt: Dealt) -> int:
    refused = [run for run in pool.runs if dealt.refusals.get(run.id) in CURABLE]
    if not refused:
        return 0
    crew = preemptions.crew(session, pool.name)
    lowest = max((a.rank for a in crew.running), default=0)
    above = [run for run in refused if run.priority.rank < lowest]
    chosen = preempt(pool, crew, waiting=above, now=market.at)
    return preemptions.order(session, chosen, at=market.at) if chosen else 0
