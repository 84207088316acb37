"""One turn of granting in one pool.

Guarantees: the rule of `core.fairness` at every single bundle; members of a group are granted one after the
other; one runner is emptied for the longest waiting rollout that needs more room than there is in one place.
Does not: remember anything between turns."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tiltyard.core.capacity import Capacity, least
from tiltyard.core.fairness import Dealt, Grant, Pool, Refusal, Run, Tenant, Waiting, behind, in_order, rank
from tiltyard.core.placement import Placement

HOLD_AFTER = timedelta(seconds=15)
"""A rollout that fits on no runner for this long has one emptied for it."""


@dataclass(slots=True, kw_only=True)
class _Party:
    """A tenant or a run while grants change what it holds."""

    key: str
    weight: float
    deficit: float
    usage: Capacity
    aboard: int
    cap: int | None
    share: float

    @property
    def room(self) -> float:
        return float("inf") if self.cap is None else self.cap - self.aboard


@dataclass(slots=True, kw_only=True)
class _Queue:
    """A run's bundles that have not been tried in this turn."""

    run: Run
    party: _Party
    rank: int
    own_rank: int
    bundles: list[list[Waiting]]
    refusal: Refusal | None = None

    @property
    def head(self) -> Waiting:
        return self.bundles[0][0]


class Deal:
    """The state of one turn."""

    def __init__(self, pool: Pool, *, now: datetime, most: int) -> None:
        self._pool, self._now, self._left = pool, now, most
        self._placement = Placement(pool.runners)
        self._tenants = {t.id: self._party(t) for t in pool.tenants.values()}
        self._queues = [self._queue(run) for run in pool.runs if run.waiting]
        self._smallest = least(w.demand for q in self._queues for w in q.run.waiting)
        self._aboard = sum(r.aboard for r in pool.runners)
        self._lendable, self._lent = pool.lendable, pool.lent
        self._images = dict(pool.images)
        self._grants: list[Grant] = []

    def _party(self, who: Tenant | Run) -> _Party:
        return _Party(
            key=who.id,
            weight=who.weight,
            deficit=who.deficit,
            usage=who.usage,
            aboard=who.aboard,
            cap=who.cap,
            share=who.usage.share(self._pool.capacity),
        )

    def _queue(self, run: Run) -> _Queue:
        bundles = in_order(run.waiting)
        return _Queue(
            run=run,
            party=self._party(run),
            rank=rank(run, self._now),
            own_rank=run.priority.rank,
            bundles=bundles,
        )

    def play(self) -> Dealt:
        """Grant until nothing fits any more."""
        self._make_room_for_the_large()
        while self._left > 0 and self._placement.free_slots > 0 and (queue := self._next()) is not None:
            self._serve(queue)
        refusals = {q.run.id: q.refusal or self._why(q) for q in self._queues if q.bundles or q.refusal}
        return Dealt(grants=tuple(self._grants), refusals=refusals)

    def _open(self) -> list[_Queue]:
        """Queues with something to try that no cap stops."""
        return [q for q in self._queues if q.bundles and self._capped(q) is None]

    def _capped(self, queue: _Queue, item: Waiting | None = None) -> Refusal | None:
        """What keeps this item, or the head of the queue, waiting whatever room there is."""
        if queue.party.room <= 0:
            return Refusal.RUN_CAP
        if self._tenants[queue.run.tenant].room <= 0:
            return Refusal.TENANT_CAP
        if self._pool.cap is not None and self._aboard >= self._pool.cap:
            return Refusal.POOL_CAP
        asked = (item or queue.head).demand.slots
        if self._pool.headroom and queue.own_rank and self._lent + asked > self._lendable:
            return Refusal.HEADROOM
        return None

    def _is_barred(self, item: Waiting) -> bool:
        return self._images.get(item.image, 1) <= 0

    def _next(self) -> _Queue | None:
        """Whose turn it is."""
        queues = self._open()
        if not queues:
            return None
        best = min(q.rank for q in queues)
        queues = [q for q in queues if q.rank == best]
        tenant = self._first({q.run.tenant: (self._tenants[q.run.tenant], q) for q in reversed(queues)})
        own = {q.run.id: (q.party, q) for q in queues if q.run.tenant == tenant}
        chosen = self._first(own)
        return own[chosen][1]

    def _first(self, parties: dict[str, tuple[_Party, _Queue]]) -> str:
        """The party that is furthest behind its share."""
        held = sum(p.share for p, _ in parties.values())
        weights = sum(p.weight for p, _ in parties.values())

        def pace(key: str) -> tuple[int, float, float, str]:
            party, queue = parties[key]
            item = queue.head.demand.share(self._pool.capacity)
            whole, lag = behind(party.share, party.weight, held=held, weights=weights, item=item)
            return -whole, -party.deficit / party.weight, -lag, key

        return min(parties, key=pace)

    def _serve(self, queue: _Queue) -> None:
        """Grant the first bundle as far as there is room for it."""
        for item in queue.bundles.pop(0):
            if self._left <= 0 or self._capped(queue, item) is not None:
                queue.bundles.insert(0, [item])
                return
            if self._is_barred(item):
                queue.refusal = queue.refusal or Refusal.IMAGE_CAP
            elif not self._give(queue, item):
                queue.refusal = queue.refusal or self._why_unplaced(item)

    def _give(self, queue: _Queue, item: Waiting) -> bool:
        incarnation = self._placement.place(item.demand, alone=item.alone, rank=queue.rank)
        if incarnation is None:
            return False
        self._grants.append(
            Grant(rollout=item.rollout, run=queue.run.id, incarnation=incarnation, rank=queue.rank)
        )
        self._left -= 1
        self._aboard += 1
        self._lent += item.demand.slots if queue.own_rank else 0
        if item.image in self._images:
            self._images[item.image] -= 1
        for party in (queue.party, self._tenants[queue.run.tenant]):
            party.aboard += 1
            party.usage = party.usage + item.demand
            party.share = party.usage.share(self._pool.capacity)
        queue.rank = queue.own_rank
        return True

    def _make_room_for_the_large(self) -> None:
        """Place the longest waiting rollout that is hard to place, or hold a runner for it.

        Only in the class whose turn it is, and for a tenant that is not past its share."""
        queues = self._open()
        best = min((q.rank for q in queues), default=0)
        hard = [(q, w) for q in queues if q.rank == best for w in self._hard(q)]
        for queue, item in sorted(hard, key=lambda pair: (pair[1].queued_at, pair[1].rollout)):
            if self._is_past_its_share(queue, queues, item) or not self._placement.could_ever(item.demand):
                continue
            if self._give(queue, item):
                queue.bundles = [kept for b in queue.bundles if (kept := [w for w in b if w is not item])]
            else:
                self._placement.hold(item.demand, alone=item.alone)
            return

    def _hard(self, queue: _Queue) -> Iterable[Waiting]:
        """Rollouts that wait while smaller ones take the room they need."""
        for bundle in queue.bundles:
            for item in bundle:
                patient = self._now - item.queued_at >= HOLD_AFTER
                hard = item.alone or not item.demand.fits(self._smallest)
                if patient and hard and not self._is_barred(item):
                    yield item

    def _is_past_its_share(self, queue: _Queue, queues: list[_Queue], item: Waiting) -> bool:
        parties = {q.run.tenant: self._tenants[q.run.tenant] for q in queues if q.rank == queue.rank}
        mine = parties[queue.run.tenant]
        whole, _ = behind(
            mine.share,
            mine.weight,
            held=sum(p.share for p in parties.values()),
            weights=sum(p.weight for p in parties.values()),
            item=item.demand.share(self._pool.capacity),
        )
        return whole < 0

    def _why(self, queue: _Queue) -> Refusal:
        return self._capped(queue) or self._why_unplaced(queue.head)

    def _why_unplaced(self, item: Waiting) -> Refusal:
        if all(r.closed for r in self._pool.runners):
            return Refusal.NO_RUNNER
        return Refusal.FULL if self._placement.could_ever(item.demand) else Refusal.TOO_LARGE


def deal(pool: Pool, *, now: datetime, most: int = 512) -> Dealt:
    """Grants of one turn, at most `most`, and why the rest waits."""
    return Deal(pool, now=now, most=most).play()


def deal_all(pools: Iterable[Pool], *, now: datetime) -> Iterator[tuple[Pool, Dealt]]:
    """Grants of one turn in each pool; caps of tenants and images count what the pools before it gave."""
    tenants: Counter[str] = Counter()
    images: Counter[str] = Counter()
    for pool in pools:
        left = {name: room - images[name] for name, room in pool.images.items()}
        parties = {k: replace(t, aboard=t.aboard + tenants[k]) for k, t in pool.tenants.items()}
        dealt = deal(replace(pool, images=left, tenants=parties), now=now)
        granted = {g.rollout for g in dealt.grants}
        for run in pool.runs:
            mine = [w for w in run.waiting if w.rollout in granted]
            tenants[run.tenant] += len(mine)
            images.update(w.image for w in mine)
        yield pool, dealt
