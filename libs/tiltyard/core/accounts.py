"""How far each tenant, and each of its runs, is behind its share of a pool.

Guarantees: what those who wait are owed adds up to nothing; an account follows from what the rows say is held
at each turn, so that nothing lost or forgotten stays charged; who does not wait is owed nothing.
Does not: choose anybody (`core.fairness`).

A rollout is charged from its grant to the first turn after its end: only then can its place be given to
somebody else. So even the shortest costs a turn, and there is no estimate to settle."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tiltyard.core.capacity import Capacity, total
from tiltyard.core.fairness import Grant, Pool, Run, Tenant

LONGEST_DEBT = 600.0
"""Seconds of the whole pool that a deficit may reach."""
DEBT_HALF_LIFE = 60.0
"""Seconds in which the debt of one that does not wait halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One account as `accrue` sees it."""

    weight: float
    deficit: float
    share: float
    """Dominant share that it held."""
    waited: bool


def accrue(standings: Mapping[str, Standing], *, seconds: float) -> dict[str, float]:
    """Deficits after `seconds` in which everybody held what their `Standing` says.

    Those who wait are owed their weight's part of what they hold together. One that does not wait is owed
    nothing, and its debt fades."""
    waiting = [s for s in standings.values() if s.waited]
    held, weights = sum(s.share for s in waiting), sum(s.weight for s in waiting)
    after: dict[str, float] = {}
    for key, s in standings.items():
        if s.waited:
            owed = s.deficit + (held * s.weight / weights - s.share) * seconds
            after[key] = min(LONGEST_DEBT, max(-LONGEST_DEBT, owed))
        else:
            after[key] = min(0.0, s.deficit) * 0.5 ** (seconds / DEBT_HALF_LIFE)
    return after


def accrued(pool: Pool, *, seconds: float) -> Pool:
    """The pool with its deficits `seconds` after the last turn."""

    def after(parties: Iterable[Tenant | Run]) -> dict[str, float]:
        standings = {
            p.id: Standing(weight=p.weight, deficit=p.deficit, share=p.held, waited=p.waited) for p in parties
        }
        return accrue(standings, seconds=seconds)

    tenants = after(pool.tenants.values())
    runs: dict[str, float] = {}
    for tenant in tenants:
        runs |= after(r for r in pool.runs if r.tenant == tenant)
    return replace(
        pool,
        tenants={k: replace(t, deficit=tenants[k]) for k, t in pool.tenants.items()},
        runs=tuple(replace(r, deficit=runs[r.id]) for r in pool.runs),
    )


def closed(pool: Pool, grants: Iterable[Grant]) -> Pool:
    """The pool with what everybody holds and who waits after a turn's grants: the next turn accrues that."""
    granted = {g.rollout for g in grants}
    runs = tuple(_closed_run(run, granted, pool.capacity) for run in pool.runs)
    given = {
        t: total(w.demand for r in pool.runs if r.tenant == t for w in r.waiting if w.rollout in granted)
        for t in pool.tenants
    }
    waiting = {r.tenant for r in runs if r.waited}
    return replace(
        pool,
        runs=runs,
        tenants={
            k: replace(t, held=(t.usage + given[k]).share(pool.capacity), waited=k in waiting)
            for k, t in pool.tenants.items()
        },
    )


def _closed_run(run: Run, granted: set[str], whole: Capacity) -> Run:
    given = total(w.demand for w in run.waiting if w.rollout in granted)
    waits = any(w.rollout not in granted for w in run.waiting)
    return replace(run, held=(run.usage + given).share(whole), waited=waits)
