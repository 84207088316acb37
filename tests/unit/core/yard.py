"""A pool in simulated time: runners, tenants with runs, and the dispatcher's turns."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tiltyard.core.accounts import accrued, closed
from tiltyard.core.capacity import ONE_SLOT, Capacity, total
from tiltyard.core.deal import deal
from tiltyard.core.fairness import Dealt, Grant, Pool, Run, Tenant, Waiting
from tiltyard.core.fleet import Runner

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True, kw_only=True)
class Aboard:
    """A rollout that was granted."""

    waiting: Waiting
    run: str
    runner: str
    rank: int
    since: float
    until: float


@dataclass(kw_only=True)
class Yard:
    """Turns in simulated seconds; what each tenant and run held is added up as share-seconds."""

    runners: dict[str, Capacity]
    tenants: dict[str, Tenant]
    runs: dict[str, Run]
    durations: Callable[[str], float]
    """Seconds that the next rollout of a run takes."""
    turn: float = 0.25
    clock: float = 0.0
    aboard: dict[str, Aboard] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    """Slot-seconds by run."""
    occupied: Counter[str] = field(default_factory=Counter)
    """Turns that slots were taken from others, by run: the one in which a rollout ends counts whole."""
    ended: list[Aboard] = field(default_factory=list)
    made: int = 0

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.clock)

    @property
    def capacity(self) -> Capacity:
        return total(self.runners.values())

    def submit(
        self, run: str, count: int = 1, *, group: int = 1, demand: Capacity = ONE_SLOT, alone: bool = False
    ) -> None:
        """Queue `count` rollouts of a run, in groups of `group`."""
        items: list[Waiting] = []
        for _ in range(count):
            name = f"{self.made // group:07d}"
            items.append(
                Waiting(
                    rollout=f"r{self.made:07d}", group=name, demand=demand, queued_at=self.now, alone=alone
                )
            )
            self.made += 1
        row = self.runs[run]
        self.runs[run] = replace(row, waiting=(*row.waiting, *items))

    def pool(self) -> Pool:
        """The rows as the store would tell them."""
        runners = tuple(
            Runner(
                incarnation=name,
                last_heartbeat=self.now,
                capacity=capacity,
                aboard=sum(a.runner == name for a in self.aboard.values()),
                used=total(a.waiting.demand for a in self.aboard.values() if a.runner == name),
                lonely=any(a.waiting.alone for a in self.aboard.values() if a.runner == name),
            )
            for name, capacity in self.runners.items()
        )
        runs = tuple(
            replace(
                run,
                usage=total(a.waiting.demand for a in self.aboard.values() if a.run == run.id),
                aboard=sum(a.run == run.id for a in self.aboard.values()),
            )
            for run in self.runs.values()
        )
        tenants = {
            t.id: replace(
                t,
                usage=total(r.usage for r in runs if r.tenant == t.id),
                aboard=sum(r.aboard for r in runs if r.tenant == t.id),
            )
            for t in self.tenants.values()
        }
        return Pool(name="p", runners=runners, tenants=tenants, runs=runs, capacity=self.capacity)

    def step(self) -> Dealt:
        """One turn: time passes, what is over ends, accounts accrue, grants are dealt and charged."""
        self.clock += self.turn
        for name, entry in list(self.aboard.items()):
            lived = min(entry.until, self.clock) - max(entry.since, self.clock - self.turn)
            self.held[entry.run] += lived * entry.waiting.demand.share(self.capacity)
            self.occupied[entry.run] += entry.waiting.demand.slots
            if entry.until <= self.clock:
                self.ended.append(self.aboard.pop(name))
        pool = accrued(self.pool(), seconds=self.turn)
        dealt = deal(pool, now=self.now)
        self._carry_out(closed(pool, dealt.grants), dealt)
        return dealt

    def _carry_out(self, pool: Pool, dealt: Dealt) -> None:
        granted = {g.rollout: g for g in dealt.grants}
        for run in pool.runs:
            for item in run.waiting:
                if item.rollout in granted:
                    self._board(item, granted[item.rollout])
            left = tuple(w for w in run.waiting if w.rollout not in granted)
            served = len(left) < len(run.waiting)
            self.runs[run.id] = replace(
                self.runs[run.id],
                waiting=left,
                deficit=run.deficit,
                held=run.held,
                waited=run.waited,
                granted_at=self.now if served else run.granted_at,
            )
        self.tenants = {
            k: replace(self.tenants[k], deficit=t.deficit, held=t.held, waited=t.waited)
            for k, t in pool.tenants.items()
        }

    def _board(self, item: Waiting, grant: Grant) -> None:
        self.aboard[item.rollout] = Aboard(
            waiting=item,
            run=grant.run,
            runner=grant.incarnation,
            rank=grant.rank,
            since=self.clock,
            until=self.clock + self.durations(grant.run),
        )

    def share_of_tenant(self, tenant: str) -> float:
        mine = sum(s for r, s in self.held.items() if self.runs[r].tenant == tenant)
        return mine / sum(self.held.values())


def yard(
    weights: dict[str, float],
    *,
    slots: int,
    runners: int = 1,
    shards: dict[str, int] | None = None,
    durations: Callable[[str], float],
) -> Yard:
    """Tenants of these weights, each with as many runs as `shards` says, over equal runners."""
    runs = {
        f"{t}.{n}": Run(id=f"{t}.{n}", tenant=t) for t in weights for n in range((shards or {}).get(t, 1))
    }
    return Yard(
        runners={f"n{i}": Capacity(slots=slots) for i in range(runners)},
        tenants={t: Tenant(id=t, weight=w) for t, w in weights.items()},
        runs=runs,
        durations=durations,
    )
