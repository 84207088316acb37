"""Preemption: only lower work yields, only as much as is needed, nobody for ever, and never in a circle."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.yard import START, Yard, yard
from tiltyard.core.capacity import ONE_SLOT, Capacity, total
from tiltyard.core.fairness import (
    AGE_EVERY,
    BOOST_AFTER,
    Dealt,
    Pool,
    Priority,
    Refusal,
    Run,
    Tenant,
    Waiting,
)
from tiltyard.core.fleet import LOWEST, Runner
from tiltyard.core.preemption import (
    LEAST_RUN,
    PART_A_MINUTE,
    PART_AT_ONCE,
    WAIT_FIRST,
    Aboard,
    Crew,
    Preemption,
    may_yield,
    preempt,
)

NOW = START + timedelta(hours=1)
demands = st.builds(Capacity, slots=st.integers(1, 3), memory_mb=st.sampled_from([0, 100, 300]))
crews = st.lists(
    st.builds(
        Aboard,
        rollout=st.uuids().map(str),
        group=st.sampled_from(["g0", "g1", "g2", "g3"]),
        tenant=st.sampled_from("ab"),
        incarnation=st.sampled_from(["n0", "n1"]),
        demand=demands,
        rank=st.integers(0, 2),
        granted_at=st.integers(0, 30).map(lambda s: NOW - timedelta(seconds=s)),
        preemptions=st.integers(0, BOOST_AFTER),
    ),
    max_size=10,
    unique_by=lambda a: a.rollout,
)
priorities = st.sampled_from(list(Priority))


def _item(name: str, demand: Capacity = ONE_SLOT, *, waited: float = 10.0, group: str = "w") -> Waiting:
    return Waiting(rollout=name, group=group, demand=demand, queued_at=NOW - timedelta(seconds=waited))


def _run(priority: Priority, *items: Waiting, name: str = "up", **more: object) -> Run:
    return replace(Run(id=name, tenant="c", priority=priority, waiting=items), **more)


def _pool(aboard: Sequence[Aboard], *runs: Run, spare: int = 0) -> Pool:
    """Two runners that just hold what is aboard, with `spare` slots more on each."""
    runners: list[Runner] = []
    for name in ("n0", "n1"):
        demands = [a.demand for a in aboard if a.incarnation == name]
        used = total(demands)
        more = Capacity(slots=spare)
        runners.append(
            Runner(incarnation=name, last_heartbeat=NOW, capacity=used + more, used=used, aboard=len(demands))
        )
    tenants = {
        t: Tenant(
            id=t,
            usage=total(a.demand for a in aboard if a.tenant == t),
            aboard=sum(a.tenant == t for a in aboard),
        )
        for t in ("a", "b", "c")
    }
    whole = total(r.capacity for r in runners)
    return Pool(name="p", runners=tuple(runners), tenants=tenants, runs=runs, capacity=whole)


def _aboard(name: str, **more: object) -> Aboard:
    plain = Aboard(
        rollout=name,
        group=name,
        tenant="a",
        incarnation="n0",
        demand=ONE_SLOT,
        rank=2,
        granted_at=NOW - timedelta(minutes=1),
    )
    return replace(plain, **more)


def _victims(found: tuple[Preemption, ...]) -> list[str]:
    return [v for p in found for v in p.victims]


def _decide(aboard: list[Aboard], *runs: Run, yielding: tuple[Aboard, ...] = (), told: int = 0) -> list[str]:
    crew = Crew(running=tuple(aboard), yielding=yielding, told=told)
    return _victims(preempt(_pool([*aboard, *yielding], *runs), crew, waiting=runs, now=NOW))


@given(crews, priorities, demands, st.integers(0, 2))
def test_victims_are_lower_old_enough_not_spent_and_minimal(
    aboard: list[Aboard], priority: Priority, demand: Capacity, spare: int
) -> None:
    run = _run(priority, _item("w", demand))
    pool = _pool(aboard, run, spare=spare)

    found = preempt(pool, Crew(running=tuple(aboard)), waiting=[run], now=NOW)

    able = [a for a in aboard if may_yield(a, rank=priority.rank, now=NOW)]
    room = {r.incarnation: r.room for r in pool.runners}
    for one in found:
        victims = [a for a in aboard if a.rollout in one.victims]
        assert all(v in able and v.rank > priority.rank and v.preemptions < BOOST_AFTER for v in victims)
        assert all(v.incarnation == one.incarnation for v in victims)
        assert demand.fits(room[one.incarnation] + total(v.demand for v in victims))
        for spared in victims:
            rest = total(v.demand for v in victims if v is not spared)
            assert not demand.fits(room[one.incarnation] + rest)
    fits = any(demand.fits(r) for r in room.values())
    could = any(
        demand.fits(room[n] + total(a.demand for a in able if a.incarnation == n)) for n in ("n0", "n1")
    )
    assert bool(found) == (could and not fits)


@given(crews, st.lists(st.tuples(priorities, st.lists(demands, max_size=4)), max_size=4), st.integers(0, 6))
def test_nobody_yields_twice_and_no_more_than_is_allowed_at_once(
    aboard: list[Aboard], queues: list[tuple[Priority, list[Capacity]]], yielding: int
) -> None:
    runs = [
        _run(p, *(_item(f"{n}.{i}", d) for i, d in enumerate(ds)), name=f"r{n}")
        for n, (p, ds) in enumerate(queues)
    ]
    leaving = tuple(_aboard(f"y{n}", incarnation="n1") for n in range(yielding))
    pool = _pool([*aboard, *leaving], *runs)

    found = preempt(pool, Crew(running=tuple(aboard), yielding=leaving, told=yielding), waiting=runs, now=NOW)

    names = _victims(found)
    assert len(names) == len(set(names))
    own = {r.id: r.priority.rank for r in runs}
    by_name = {a.rollout: a for a in aboard}
    assert all(by_name[v].rank > own[p.run] for p in found for v in p.victims)
    told = sum(by_name[v].demand.slots for v in names)
    if yielding or len(found) > 1:
        assert not found or yielding + told <= pool.capacity.slots * PART_AT_ONCE


@given(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=2, max_size=6), st.integers(0, 8))
def test_a_minute_has_its_limit(waits: list[float], told: int) -> None:
    aboard = [_aboard(f"a{n}", incarnation=f"n{n % 2}") for n in range(8)]
    run = _run(Priority.HIGH, *(_item(f"w{n}", waited=w) for n, w in enumerate(waits)))

    victims = _decide(aboard, run, told=told)

    patient = sum(w >= WAIT_FIRST.total_seconds() for w in waits)
    left = int(8 * PART_A_MINUTE) - told
    assert len(victims) == max(0, min(patient, left, int(8 * PART_AT_ONCE)))


def test_ageing_takes_nothing_back() -> None:
    long = (AGE_EVERY * 10).total_seconds()
    low, same = (_run(p, _item("w", waited=long)) for p in (Priority.LOW, Priority.NORMAL))

    assert _decide([_aboard("a")], low) == []
    assert _decide([_aboard("a", rank=1)], same) == []
    assert _decide([_aboard("a")], same) == ["a"]


@pytest.mark.parametrize(
    "spared",
    [
        {"rank": 0},
        {"granted_at": NOW - LEAST_RUN + timedelta(milliseconds=1)},
        {"preemptions": BOOST_AFTER},
    ],
)
def test_who_is_left_alone(spared: dict[str, object]) -> None:
    run = _run(Priority.HIGH, _item("w"))

    assert _decide([_aboard("a", **spared)], run) == []
    assert _decide([_aboard("a", **spared), _aboard("b")], run) == ["b"]


def test_borrowers_yield_first_then_the_lowest_class_then_the_youngest() -> None:
    run = _run(Priority.HIGH, _item("w"))
    young, old = NOW - timedelta(seconds=10), NOW - timedelta(seconds=99)
    lender = _aboard("lender", tenant="b", granted_at=young)
    middle = _aboard("middle", rank=1, granted_at=young)
    aged = _aboard("aged", granted_at=old)
    fresh = _aboard("fresh", granted_at=young)

    assert _decide([lender, middle, aged, fresh], run) == ["fresh"]
    assert _decide([lender, middle, aged], run) == ["aged"]
    assert _decide([lender, middle, _aboard("m2", rank=1)], run) == ["middle"]


def test_a_group_is_taken_whole_before_the_next_is_begun() -> None:
    aboard = [
        _aboard(f"{g}{n}", group=g, granted_at=NOW - timedelta(seconds=20 + 10 * n + ord(g) - ord("x")))
        for g in "xy"
        for n in range(3)
    ]
    items = [_item(f"w{n}") for n in range(3)]

    assert sorted(_decide(aboard, _run(Priority.HIGH, *items))) == ["x0", "x1", "x2"]
    gone = _aboard("y3", group="y", incarnation="n1", demand=Capacity())
    assert _decide(aboard, _run(Priority.HIGH, items[0]), yielding=(gone,)) == ["y0"]


def test_what_is_being_freed_already_is_counted_and_kept_for_its_class() -> None:
    aboard = [_aboard("a"), _aboard("b")]
    high, normal = _run(Priority.HIGH, _item("w")), _run(Priority.NORMAL, _item("w"))
    gone = _aboard("gone", rank=1)

    assert _decide(aboard, high) != []
    assert _decide(aboard, high, yielding=(gone,)) == []
    crew = Crew(running=tuple(aboard), stopping=(gone,))
    pool = _pool([*aboard, gone], high)
    assert preempt(pool, crew, waiting=[high], now=NOW) == ()
    kept = replace(pool, runs=(normal,), runners=tuple(replace(r, yields_to=0) for r in pool.runners))
    assert preempt(kept, crew, waiting=[normal], now=NOW) == ()


def test_victims_that_a_larger_one_makes_needless_are_spared() -> None:
    """The youngest are small and do not suffice; the oldest alone does."""
    aboard = [_aboard(f"s{n}", granted_at=NOW - timedelta(seconds=10 + n)) for n in range(2)]
    large = _aboard("large", demand=Capacity(slots=3))

    assert _decide([*aboard, large], _run(Priority.HIGH, _item("w", Capacity(slots=3)))) == ["large"]


def test_the_runner_where_least_is_lost_yields() -> None:
    aboard = [_aboard("a0"), _aboard("a1"), _aboard("b", incarnation="n1", demand=Capacity(slots=2))]

    assert _decide(aboard, _run(Priority.HIGH, _item("w", Capacity(slots=2)))) == ["b"]


def test_the_head_of_the_queue_is_not_passed_by_what_is_easier() -> None:
    aboard = [_aboard("a")]
    run = _run(Priority.HIGH, _item("large", Capacity(slots=2)), _item("small"))

    assert _decide(aboard, run) == []


def test_a_runs_own_cap_takes_nothing_back() -> None:
    aboard = [_aboard(n) for n in "abcd"]
    run = _run(Priority.HIGH, _item("w0"), _item("w1"), cap=1)

    assert len(_decide(aboard, run)) == 1
    assert _decide(aboard, replace(run, aboard=1)) == []


def test_a_tenant_at_its_cap_takes_from_itself_and_a_pool_at_its_cap_from_anybody() -> None:
    """Though there is room: what a cap counts has to go."""
    mine, theirs = _aboard("mine", tenant="c"), _aboard("theirs", tenant="a")
    run = _run(Priority.HIGH, _item("w0"), _item("w1"))
    pool = _pool([mine, theirs], run, spare=4)
    crew = Crew(running=(mine, theirs))

    def taken(pool: Pool, crew: Crew = crew) -> list[str]:
        return _victims(preempt(pool, crew, waiting=[run], now=NOW))

    assert taken(pool) == []
    tenants = {**pool.tenants, "c": replace(pool.tenants["c"], cap=1)}
    assert taken(replace(pool, tenants=tenants)) == ["mine"]
    leaving = Crew(running=(theirs,), yielding=(mine,))
    assert taken(replace(pool, tenants=tenants), leaving) == []
    assert sorted(taken(replace(pool, cap=2))) == ["mine", "theirs"]


def test_who_may_not_use_the_headroom_takes_a_place_that_it_does_not_keep() -> None:
    """Slots are free, but for the highest class alone: a normal run needs a low one's place."""
    aboard = [_aboard("a"), _aboard("b")]
    normal, high = _run(Priority.NORMAL, _item("w")), _run(Priority.HIGH, _item("w"))
    mine = Run(id="mine", tenant="a", priority=Priority.LOW, usage=Capacity(slots=2))
    pool = replace(_pool(aboard, normal, mine, spare=1), headroom=2)
    crew = Crew(running=tuple(aboard))

    assert len(_victims(preempt(pool, crew, waiting=[normal], now=NOW))) == 1
    assert preempt(pool, crew, waiting=[high], now=NOW) == ()
    leaving = Crew(running=tuple(aboard[:1]), yielding=tuple(aboard[1:]))
    assert preempt(pool, leaving, waiting=[normal], now=NOW) == ()


def test_nobody_yields_to_what_its_images_cap_keeps_waiting() -> None:
    aboard = [_aboard(n) for n in "abcd"]
    items = (replace(_item("w0"), image="x"), replace(_item("w1"), image="x"))
    run = _run(Priority.HIGH, *items, _item("w2"))
    pool = _pool(aboard, run)

    def taken(left: int, run: Run = run) -> int:
        capped = replace(pool, images={"x": left})
        return len(_victims(preempt(capped, Crew(running=tuple(aboard)), waiting=[run], now=NOW)))

    assert (taken(0), taken(1)) == (1, 2)
    assert taken(0, replace(run, waiting=items)) == 0


def test_draining_and_lonely_runners_are_left_alone() -> None:
    aboard = [_aboard("a")]
    run = _run(Priority.HIGH, _item("w"))
    pool = _pool(aboard, run)
    for closed in ({"draining": True}, {"lonely": True}):
        shut = replace(pool, runners=tuple(replace(r, **closed) for r in pool.runners))
        assert preempt(shut, Crew(running=tuple(aboard)), waiting=[run], now=NOW) == ()


@dataclass(kw_only=True)
class Contest(Yard):
    """A yard where work yields: told by one turn, gone after `grace` seconds, queued again."""

    grace: float = 1.0
    yields: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each rollout that was told to yield is gone, and to which run."""
    preemptions: Counter[str] = field(default_factory=Counter)

    def pool(self) -> Pool:
        pool = super().pool()
        kept: dict[str, int] = {}
        for name, (_, run) in self.yields.items():
            runner = self.aboard[name].runner
            kept[runner] = min(kept.get(runner, LOWEST), self.runs[run].priority.rank)
        runners = (replace(r, yields_to=kept.get(r.incarnation, LOWEST)) for r in pool.runners)
        return replace(pool, runners=tuple(runners))

    def step(self) -> Dealt:
        for name, (until, _) in list(self.yields.items()):
            if until <= self.clock + self.turn:
                self._requeue(name)
        dealt = super().step()
        pool = self.pool()
        full = [r for r in pool.runs if dealt.refusals.get(r.id) is Refusal.FULL and r.waiting]
        for one in preempt(pool, self._crew(), waiting=full, now=self.now):
            for victim in one.victims:
                assert self.aboard[victim].rank > self.runs[one.run].priority.rank
                self.yields[victim] = (self.clock + self.grace, one.run)
                self.aboard[victim].until = float("inf")
                self.preemptions[victim] += 1
        return dealt

    def _requeue(self, name: str) -> None:
        del self.yields[name]
        gone = self.aboard.pop(name)
        item = replace(gone.waiting, queued_at=self.now, preemptions=self.preemptions[name])
        run = self.runs[gone.run]
        waiting = sorted((*run.waiting, item), key=lambda w: w.rollout)
        self.runs[run.id] = replace(run, waiting=tuple(waiting))

    def _crew(self) -> Crew:
        rows = {
            name: Aboard(
                rollout=name,
                group=a.waiting.group,
                tenant=self.runs[a.run].tenant,
                incarnation=a.runner,
                demand=a.waiting.demand,
                rank=a.rank,
                granted_at=START + timedelta(seconds=a.since),
                preemptions=a.waiting.preemptions,
            )
            for name, a in self.aboard.items()
        }
        yielding = tuple(rows[n] for n in self.yields)
        staying = tuple(a for n, a in rows.items() if n not in self.yields)
        slots = sum(a.demand.slots for a in yielding)
        return Crew(running=staying, yielding=yielding, told=slots)


def _contest(
    classes: dict[str, Priority], *, slots: int, runners: int, durations: Callable[[str], float]
) -> Contest:
    plain = yard(dict.fromkeys(classes, 1.0), slots=slots, runners=runners, durations=durations)
    runs = {f"{t}.0": replace(plain.runs[f"{t}.0"], priority=p) for t, p in classes.items()}
    return Contest(runners=plain.runners, tenants=plain.tenants, runs=runs, durations=durations)


def _play(contest: Contest, *, most: float) -> None:
    """Until everything has ended."""
    while contest.aboard or any(r.waiting for r in contest.runs.values()):
        contest.step()
        assert contest.clock < most, "somebody waits for ever"


def test_low_work_yields_to_high_and_completes_after_it() -> None:
    contest = _contest(
        {"low": Priority.LOW, "high": Priority.HIGH}, slots=4, runners=2, durations=lambda _: 60.0
    )
    contest.submit("low.0", 8, group=4)
    for _ in range(40):
        contest.step()
    contest.submit("high.0", 8, group=4)
    came = contest.clock
    while sum(a.run == "high.0" for a in contest.aboard.values()) < 8:
        contest.step()

    assert contest.clock - came <= 15
    _play(contest, most=600)
    assert Counter(a.run for a in contest.ended) == {"low.0": 8, "high.0": 8}
    assert max(contest.preemptions.values()) <= BOOST_AFTER


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), priorities, st.sampled_from([1, 2, 4]), st.integers(1, 8)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([(1, 1), (2, 2), (4, 1), (3, 2)]),
    st.sampled_from([1.0, 7.0, 40.0]),
    st.sampled_from([0.25, 5.0]),
)
def test_no_circle_everybody_completes_and_preemptions_are_few(
    arrivals: list[tuple[int, Priority, int, int]],
    fleet: tuple[int, int],
    length: float,
    grace: float,
) -> None:
    """Bursts of any class at any time; once they end, all that was planned ends."""
    slots, runners = fleet
    contest = _contest(
        {p.value: p for p in Priority}, slots=slots, runners=runners, durations=lambda _: length
    )
    contest.grace = grace
    for turn, priority, group, count in sorted(arrivals, key=lambda a: a[0]):
        while contest.clock < turn * contest.turn:
            contest.step()
        contest.submit(f"{priority.value}.0", count, group=group)

    _play(contest, most=100 + contest.made * (length + 20) * 3)

    assert len(contest.ended) == contest.made
    assert all(n <= BOOST_AFTER for n in contest.preemptions.values())
    high = {a.waiting.rollout for a in contest.ended if a.run == "high.0"}
    assert not high & set(contest.preemptions)
