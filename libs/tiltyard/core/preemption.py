"""What gives way when work of a higher class finds no room.

Guarantees: only what was granted in a strictly lower class yields, to a run's own class and never to what
ageing made of it: so no two runs can take the same place from each other for ever. Nobody is chosen that
could have been spared, nobody that has yielded `BOOST_AFTER` times, nobody that has just begun; what is being
freed already is counted before anybody is chosen. Caps and headroom hold: who is at one takes a place that it
counts.
Does not: take anything itself: victims are told, and have a grace (`store.preemptions`); nor does it empty a
runner for what must be alone (`core.deal` does).

Source of the order of victims and of the second look at each: Kueue (kubernetes-sigs/kueue,
pkg/scheduler/preemption)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tiltyard.core.capacity import NOTHING, Capacity
from tiltyard.core.fairness import BOOST_AFTER, EXACT, Pool, Refusal, Run, Waiting, in_order
from tiltyard.core.fleet import Runner

WAIT_FIRST = timedelta(seconds=1)
"""A rollout of a higher class waits this long for room to come by itself."""
LEAST_RUN = timedelta(seconds=5)
"""What was granted less than this ago is not taken back."""
PART_AT_ONCE = 0.5
"""Part of a pool's slots that may be yielding at one time."""
PART_A_MINUTE = 1.0
"""Part of a pool's slots that may be told to yield within a minute."""
MINUTE = timedelta(seconds=60)
CURABLE = frozenset({Refusal.FULL, Refusal.TENANT_CAP, Refusal.POOL_CAP, Refusal.HEADROOM})
"""Why work may wait and yet be served once something lower has yielded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aboard:
    """A rollout that a runner has."""

    rollout: str
    group: str
    tenant: str
    incarnation: str
    demand: Capacity
    rank: int
    """Its class: the one that its grant was served in, or its run's own where that is higher now."""
    granted_at: datetime
    preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """What a pool has aboard, as far as it may yield or is about to leave."""

    running: tuple[Aboard, ...]
    yielding: tuple[Aboard, ...] = ()
    """Were told to yield, and have not."""
    stopping: tuple[Aboard, ...] = ()
    """Were cancelled, and have not stopped."""
    told: int = 0
    """Slots of those that were told to yield within the last `MINUTE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Rollouts that yield their places on one runner to a run."""

    victims: tuple[str, ...]
    incarnation: str
    run: str


def may_yield(victim: Aboard, *, rank: int, now: datetime) -> bool:
    """Whether work of class `rank` may take the place of `victim`."""
    old_enough = now - victim.granted_at >= LEAST_RUN
    return rank < victim.rank and old_enough and victim.preemptions < BOOST_AFTER


def preempt(pool: Pool, crew: Crew, *, waiting: Iterable[Run], now: datetime) -> tuple[Preemption, ...]:
    """Who yields now. `pool` is as a turn of granting left it, `waiting` are the runs that it refused for a
    reason that is `CURABLE`.

    The highest class and the longest waiting run comes first; a run takes for the head of its queue, and for
    the next only when that is provided for."""
    turn = _Turn(pool, crew, now)
    patient = [run for run in waiting if any(now - w.queued_at >= WAIT_FIRST for w in run.waiting)]
    for run in sorted(patient, key=lambda r: (r.priority.rank, min(w.queued_at for w in r.waiting), r.id)):
        for item in (w for bundle in in_order(run.waiting) for w in bundle):
            if now - item.queued_at < WAIT_FIRST or item.alone or turn.is_barred(item):
                continue
            if not turn.provide(run, item):
                break
    return tuple(turn.chosen)


class _Turn:
    """What is free, leaving or chosen while one turn decides."""

    def __init__(self, pool: Pool, crew: Crew, now: datetime) -> None:
        self._pool, self._crew, self._now = pool, crew, now
        self._runners = {r.incarnation: r for r in pool.runners if not r.closed and not r.lonely}
        self._kept_for = {name: r.yields_to for name, r in self._runners.items()}
        self._room = {name: r.room for name, r in self._runners.items()}
        self._usage = {t.id: t.usage for t in pool.tenants.values()}
        self._aboard = Counter({t.id: t.aboard for t in pool.tenants.values()})
        self._total = sum(r.aboard for r in pool.runners)
        self._lent, self._images = pool.lent, dict(pool.images)
        self._runs = Counter({r.id: r.aboard for r in pool.runs})
        for gone in (*crew.yielding, *crew.stopping):
            self._leaves(gone)
        self._staying = _Staying(crew, self._borrowers())
        self._asked = 0
        self._spent = False
        self.chosen: list[Preemption] = []

    def is_barred(self, item: Waiting) -> bool:
        """Whether its image has as many aboard as may be: nobody needs to yield to it."""
        return self._images.get(item.image, 1) <= 0

    def provide(self, run: Run, item: Waiting) -> bool:
        """Find a place for a rollout, by victims where there is no other; whether there is one."""
        if self._spent or (run.cap is not None and self._runs[run.id] >= run.cap):
            return False
        options = [
            (self._loss(victims), name, victims)
            for name, runner in self._runners.items()
            if (victims := self._victims(run, item, runner)) is not None
        ]
        if not options:
            return False
        _, name, victims = min(options, key=lambda o: (o[0], o[1]))
        if victims and not self._is_allowed(sum(v.demand.slots for v in victims)):
            self._spent = True
            return False
        self._take(run, item, name, victims)
        return True

    def _victims(self, run: Run, item: Waiting, runner: Runner) -> list[Aboard] | None:
        """Who has to leave a runner for this to be served; None where nothing that may yield is enough."""
        name, rank = runner.incarnation, run.priority.rank
        if not item.demand.fits(runner.capacity) or rank > self._kept_for[name]:
            return None
        of_its_own = _beyond(self._aboard[run.tenant] + 1, self._pool.tenants[run.tenant].cap)
        able = (
            a
            for a in self._staying.on(name)
            if may_yield(a, rank=rank, now=self._now) and (not of_its_own or a.tenant == run.tenant)
        )
        fewest = max(of_its_own, _beyond(self._total + 1, self._pool.cap))
        room = self._room[name]
        if rank and self._pool.headroom:
            room = replace(room, slots=min(room.slots, self._pool.lendable - self._lent))
        return minimal(item.demand, room, able, fewest=fewest)

    def _is_allowed(self, slots: int) -> bool:
        """Whether so many more may be told to yield; one demand alone may exceed what is allowed at once."""
        whole = self._pool.capacity.slots
        at_once = sum(a.demand.slots for a in self._crew.yielding) + self._asked
        lately = self._crew.told + self._asked
        few = not at_once or at_once + slots <= whole * PART_AT_ONCE
        return few and (not lately or lately + slots <= whole * PART_A_MINUTE)

    def _take(self, run: Run, item: Waiting, name: str, victims: list[Aboard]) -> None:
        for victim in victims:
            self._leaves(victim)
            self._asked += victim.demand.slots
        self._room[name] = self._room[name] - item.demand
        self._runs[run.id] += 1
        self._aboard[run.tenant] += 1
        self._total += 1
        self._lent += item.demand.slots if run.priority.rank else 0
        if item.image in self._images:
            self._images[item.image] -= 1
        if victims:
            self._kept_for[name] = min(self._kept_for[name], run.priority.rank)
            self._staying.without(victims, self._borrowers())
            names = tuple(v.rollout for v in victims)
            self.chosen.append(Preemption(victims=names, incarnation=name, run=run.id))

    def _leaves(self, one: Aboard) -> None:
        self._room[one.incarnation] = self._room.get(one.incarnation, NOTHING) + one.demand
        self._usage[one.tenant] = self._usage.get(one.tenant, NOTHING) - one.demand
        self._aboard[one.tenant] -= 1
        self._total -= 1
        self._lent -= one.demand.slots if one.rank else 0

    def _loss(self, victims: Sequence[Aboard]) -> tuple[bool, bool, int, int, float]:
        """Least where nobody has to yield, then where the least is lost."""
        return (
            bool(victims),
            any(v.tenant not in self._staying.borrowers for v in victims),
            -min((v.rank for v in victims), default=0),
            len(victims),
            -max((v.granted_at.timestamp() for v in victims), default=0.0),
        )

    def _borrowers(self) -> frozenset[str]:
        """Tenants that hold more of the pool than their weight gives them."""
        tenants, whole = self._pool.tenants, self._pool.capacity
        weights = sum(t.weight for t in tenants.values())
        return frozenset(
            t.id for t in tenants.values() if self._usage[t.id].share(whole) > t.weight / weights + EXACT
        )


class _Staying:
    """What goes on running, by runner, in the order in which it would have to yield."""

    def __init__(self, crew: Crew, borrowers: frozenset[str]) -> None:
        self.borrowers = borrowers
        self._broken = {a.group for a in crew.yielding}
        self._by_runner: dict[str, list[Aboard]] = {}
        self._hosts: dict[str, set[str]] = {}
        for a in crew.running:
            self._by_runner.setdefault(a.incarnation, []).append(a)
            self._hosts.setdefault(a.group, set()).add(a.incarnation)
        self._sorted: set[str] = set()

    def on(self, name: str) -> Sequence[Aboard]:
        """Whom to take first on a runner: borrowers, the lowest class, groups that are broken already, the
        youngest; all of a group before the next is begun."""
        here = self._by_runner.get(name, [])
        if name not in self._sorted:
            youngest: dict[str, float] = {}
            for a in here:
                youngest[a.group] = max(youngest.get(a.group, 0.0), a.granted_at.timestamp())
            here.sort(key=lambda a: self._cost(a, youngest[a.group]))
            self._sorted.add(name)
        return here

    def _cost(self, a: Aboard, youngest: float) -> tuple[bool, int, bool, float, str, float, str]:
        lent, fresh = a.tenant not in self.borrowers, a.group not in self._broken
        return lent, -a.rank, fresh, -youngest, a.group, -a.granted_at.timestamp(), a.rollout

    def without(self, gone: Sequence[Aboard], borrowers: frozenset[str]) -> None:
        """Some were chosen: their groups are broken, and others may be borrowers now."""
        for a in gone:
            self._by_runner[a.incarnation].remove(a)
            self._broken.add(a.group)
            self._sorted -= self._hosts[a.group]
        if borrowers != self.borrowers:
            self.borrowers = borrowers
            self._sorted.clear()


def _beyond(count: int, cap: int | None) -> int:
    return 0 if cap is None else max(0, count - cap)


def minimal(
    demand: Capacity, room: Capacity, able: Iterable[Aboard], *, fewest: int = 0
) -> list[Aboard] | None:
    """The first of `able` whose places make `demand` fit into `room`, and `fewest` of them at least, without
    those that can be spared; None when all of them are not enough."""
    chosen: list[Aboard] = []
    free = room
    for victim in able:
        if demand.fits(free) and len(chosen) >= fewest:
            break
        chosen.append(victim)
        free = free + victim.demand
    if not demand.fits(free) or len(chosen) < fewest:
        return None
    for victim in reversed(chosen):
        if len(chosen) > fewest and demand.fits(free - victim.demand):
            chosen.remove(victim)
            free = free - victim.demand
    return chosen
