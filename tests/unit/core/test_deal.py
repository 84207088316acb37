"""Fairness: shares follow weights, nobody starves, nothing stays idle that somebody could use, caps hold."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.yard import Yard, yard
from tiltyard.core.accounts import Standing, accrue
from tiltyard.core.capacity import ONE_SLOT, Capacity
from tiltyard.core.deal import deal, deal_all
from tiltyard.core.fairness import AGE_EVERY, BOOST_AFTER, Priority, Refusal, Waiting, rank
from tiltyard.core.fleet import Runner

WITHIN = 0.05
WARM_UP, LASTS = 30.0, 130.0
weights = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=2, max_size=4
)


def _lengths(seed: int, mean: dict[str, float]) -> Callable[[str], float]:
    """Durations around each tenant's mean, whatever the order they are asked in."""
    dice = random.Random(seed)
    return lambda run: mean[run.partition(".")[0]] * dice.uniform(0.5, 1.5)


def _refill(yard: Yard, dice: random.Random, *, group: int) -> None:
    """Keep everybody waiting, by trickles or by bursts."""
    for run in yard.runs.values():
        if len(yard.runs[run.id].waiting) < 2 * group:
            yard.submit(run.id, group * dice.choice([2, 3, 12]), group=group)


def _shares(yard: Yard, before: Counter[str]) -> dict[str, float]:
    """Each tenant's part of what was held since `before`."""
    held = yard.held - before
    whole = sum(held.values())
    return {t: sum(s for r, s in held.items() if yard.runs[r].tenant == t) / whole for t in yard.tenants}


@settings(max_examples=10)
@given(
    weights,
    st.sampled_from([(4, 1), (8, 1), (4, 4), (1, 6)]),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 6), max_size=4),
    st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=4, max_size=4),
    st.sampled_from([1, 4]),
    st.integers(0, 2**16),
)
def test_shares_follow_weights_however_work_arrives_and_is_cut_into_runs(
    weights: dict[str, float],
    fleet: tuple[int, int],
    shards: dict[str, int],
    means: list[float],
    group: int,
    seed: int,
) -> None:
    lengths = _lengths(seed, dict(zip("abcd", means, strict=True)))
    slots, runners = fleet
    busy = yard(weights, slots=slots, runners=runners, shards=shards, durations=lengths)
    dice, before = random.Random(seed), Counter[str]()
    while busy.clock < LASTS:
        _refill(busy, dice, group=group)
        busy.step()
        if busy.clock == WARM_UP:
            before = busy.held.copy()

    for tenant, share in _shares(busy, before).items():
        assert share == pytest.approx(weights[tenant] / sum(weights.values()), abs=WITHIN)


@settings(max_examples=6)
@given(weights, st.lists(st.sampled_from([0.05, 0.2, 0.6, 3.0]), min_size=4, max_size=4), st.integers(0, 99))
def test_places_are_shared_by_weights_however_short_the_rollouts_are(
    weights: dict[str, float], means: list[float], seed: int
) -> None:
    """What is shared is the place, from a grant to the first turn after its end: nobody else can have it
    sooner. A tenant of very short rollouts is busy for less than it holds."""
    lengths = _lengths(seed, dict(zip("abcd", means, strict=True)))
    busy = yard(weights, slots=8, durations=lengths)
    before = Counter[str]()
    while busy.clock < 90.0:
        for run in busy.runs:
            busy.submit(run, max(0, 16 - len(busy.runs[run].waiting)))
        busy.step()
        if busy.clock == WARM_UP:
            before = busy.occupied.copy()

    places = busy.occupied - before
    for tenant, weight in weights.items():
        share = places[f"{tenant}.0"] / places.total()
        assert share == pytest.approx(weight / sum(weights.values()), abs=WITHIN)


def test_runs_of_one_tenant_share_by_their_weights_too() -> None:
    busy = yard({"a": 1.0}, slots=4, shards={"a": 2}, durations=_lengths(0, {"a": 1.0}))
    busy.runs["a.1"] = replace(busy.runs["a.1"], weight=3.0)
    while busy.clock < 100:
        _refill(busy, random.Random(0), group=1)
        busy.step()

    assert busy.held["a.1"] / sum(busy.held.values()) == pytest.approx(0.75, abs=WITHIN)


def test_one_slot_is_shared_by_time_and_not_by_turns() -> None:
    busy = yard({"a": 1.0, "b": 1.0}, slots=1, durations=lambda run: 20.0 if run == "a.0" else 1.0)
    while busy.clock < 800:
        _refill(busy, random.Random(0), group=1)
        busy.step()

    assert busy.share_of_tenant("a") == pytest.approx(0.5, abs=WITHIN)


def test_a_flood_does_not_hold_up_who_comes_after_it() -> None:
    busy = yard({"flood": 1.0, "late": 1.0}, slots=4, durations=lambda _: 2.0)
    busy.submit("flood.0", 400)
    for _ in range(20):
        busy.step()
    busy.submit("late.0", 2)
    while busy.runs["late.0"].waiting:
        busy.step()

    assert busy.clock <= 5.0 + 2.0 + 2 * busy.turn


def test_idleness_earns_nothing() -> None:
    busy = yard({"a": 1.0, "b": 1.0}, slots=4, durations=lambda _: 1.0)
    busy.submit("a.0", 2_000)
    while busy.clock < 100:
        busy.step()
    before = busy.held.copy()
    while busy.clock < 160:
        _refill(busy, random.Random(0), group=1)
        busy.step()

    assert _shares(busy, before)["b"] == pytest.approx(0.5, abs=WITHIN)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(list(Priority)), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_nothing_stays_idle_that_somebody_could_use(
    queues: list[tuple[Priority, int]], slots: int, runners: int
) -> None:
    busy = yard(
        {f"t{n}": 1.0 for n in range(len(queues))}, slots=slots, runners=runners, durations=lambda _: 3.0
    )
    for n, (priority, waiting) in enumerate(queues):
        busy.runs[f"t{n}.0"] = replace(busy.runs[f"t{n}.0"], priority=priority)
        busy.submit(f"t{n}.0", waiting)
    wanted, room = sum(w for _, w in queues), slots * runners

    dealt = busy.step()

    assert len(dealt.grants) == min(wanted, room)
    assert (not dealt.refusals) == (wanted <= room)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(0, 2**16))
def test_nobody_starves_under_a_flood_of_a_higher_class(slots: int, seed: int) -> None:
    busy = yard({"high": 9.0, "low": 1.0}, slots=slots, durations=_lengths(seed, {"high": 3.0, "low": 3.0}))
    busy.turn = 1.0
    busy.runs["high.0"] = replace(busy.runs["high.0"], priority=Priority.HIGH)
    busy.runs["low.0"] = replace(busy.runs["low.0"], priority=Priority.LOW)
    busy.submit("low.0", 3)
    while busy.clock < 4 * (2 * AGE_EVERY.total_seconds() + 60):
        busy.submit("high.0", max(0, 8 - len(busy.runs["high.0"].waiting)))
        busy.step()

    assert not busy.runs["low.0"].waiting
    assert busy.share_of_tenant("high") > 0.9


def test_a_higher_class_is_served_first_and_alone() -> None:
    busy = yard({"a": 1.0, "b": 50.0}, slots=4, durations=lambda _: 1.0)
    busy.runs["a.0"] = replace(busy.runs["a.0"], priority=Priority.HIGH)
    busy.submit("a.0", 3)
    busy.submit("b.0", 9)

    grants = busy.step().grants

    assert [g.run for g in grants] == ["a.0", "a.0", "a.0", "b.0"]
    assert [g.rank for g in grants] == [0, 0, 0, 1]


def test_members_of_a_group_are_granted_together() -> None:
    busy = yard({"a": 1.0, "b": 1.0}, slots=8, durations=lambda _: 1.0)
    busy.submit("a.0", 8, group=4)
    busy.submit("b.0", 8, group=4)

    grants = busy.step().grants

    assert [g.run for g in grants] == ["a.0"] * 4 + ["b.0"] * 4


def test_a_group_that_fits_in_part_is_granted_in_part() -> None:
    busy = yard({"a": 1.0}, slots=3, durations=lambda _: 1.0)
    busy.submit("a.0", 4, group=4)

    assert len(busy.step().grants) == 3
    assert len(busy.runs["a.0"].waiting) == 1


@pytest.mark.parametrize(
    ("run_cap", "tenant_cap", "granted", "refused"),
    [
        (3, None, 3, Refusal.RUN_CAP),
        (None, 2, 2, Refusal.TENANT_CAP),
        (0, 5, 0, Refusal.RUN_CAP),
        (9, None, 8, Refusal.FULL),
    ],
)
def test_caps_hold_and_are_named(
    run_cap: int | None, tenant_cap: int | None, granted: int, refused: Refusal
) -> None:
    busy = yard({"a": 1.0}, slots=8, durations=lambda _: 9.0)
    busy.runs["a.0"] = replace(busy.runs["a.0"], cap=run_cap)
    busy.tenants["a"] = replace(busy.tenants["a"], cap=tenant_cap)
    busy.submit("a.0", 20)

    first = busy.step()
    second = busy.step()

    assert (len(first.grants), len(second.grants)) == (granted, 0)
    assert second.refusals == {"a.0": refused}


def test_a_cap_of_one_leaves_its_room_to_others() -> None:
    busy = yard({"a": 1.0, "b": 1.0}, slots=8, durations=lambda _: 9.0)
    busy.runs["a.0"] = replace(busy.runs["a.0"], cap=1)
    busy.submit("a.0", 9)
    busy.submit("b.0", 9)

    assert Counter(g.run for g in busy.step().grants) == {"a.0": 1, "b.0": 7}


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_headroom_is_left_to_the_highest_class_and_nothing_else_is(
    headroom: int, high: int, normal: int, low: int
) -> None:
    busy = yard({"a": 1.0, "b": 1.0, "c": 1.0}, slots=4, runners=2, durations=lambda _: 9.0)
    for run, priority, count in (
        ("a.0", Priority.HIGH, high),
        ("b.0", Priority.NORMAL, normal),
        ("c.0", Priority.LOW, low),
    ):
        busy.runs[run] = replace(busy.runs[run], priority=priority)
        busy.submit(run, count)

    dealt = deal(replace(busy.pool(), headroom=headroom), now=busy.now)

    granted = Counter(g.run for g in dealt.grants)
    lent = granted["b.0"] + granted["c.0"]
    assert granted["a.0"] == high
    assert lent == min(normal + low, 8 - max(headroom, high))
    if lent < normal + low and high < headroom:
        assert set(dealt.refusals.values()) == {Refusal.HEADROOM}


def test_a_runner_that_is_drained_adds_no_room_that_could_be_lent() -> None:
    busy = yard({"a": 1.0}, slots=4, runners=2, durations=lambda _: 9.0)
    busy.submit("a.0", 9)
    pool = busy.pool()
    drained = (replace(pool.runners[0], draining=True), pool.runners[1])

    assert len(deal(replace(pool, runners=drained, headroom=3), now=busy.now).grants) == 1


def _with_images(busy: Yard, *images: str) -> tuple[Waiting, ...]:
    busy.submit("a.0", len(images))
    waiting = tuple(replace(w, image=i) for w, i in zip(busy.runs["a.0"].waiting, images, strict=True))
    busy.runs["a.0"] = replace(busy.runs["a.0"], waiting=waiting)
    return waiting


def test_an_image_at_its_cap_holds_up_no_other_image() -> None:
    busy = yard({"a": 1.0}, slots=8, durations=lambda _: 9.0)
    waiting = _with_images(busy, "x", "x", "x", "", "y", "x")

    dealt = deal(replace(busy.pool(), images={"x": 2, "y": 1}), now=busy.now)

    assert [g.rollout for g in dealt.grants] == [waiting[n].rollout for n in (0, 1, 3, 4)]
    assert dealt.refusals == {"a.0": Refusal.IMAGE_CAP}


def test_caps_that_pools_have_in_common_hold_over_all_of_them() -> None:
    """Two pools are dealt in one turn: what the first gave counts in the second."""
    busy = yard({"a": 1.0}, slots=8, durations=lambda _: 9.0)
    _with_images(busy, *"xxxxxx")
    pool = replace(busy.pool(), images={"x": 4})
    capped = replace(pool, tenants={"a": replace(pool.tenants["a"], cap=3)})

    assert [len(d.grants) for _, d in deal_all([pool, pool], now=busy.now)] == [4, 0]
    assert [len(d.grants) for _, d in deal_all([capped, capped], now=busy.now)] == [3, 0]


def test_a_lonely_rollout_gets_a_runner_though_none_is_ever_empty_by_itself() -> None:
    """Somebody always has smaller work for whatever gets free."""
    busy = yard({"a": 1.0, "b": 1.0}, slots=4, runners=2, durations=_lengths(3, {"a": 4.0, "b": 4.0}))
    for _ in range(40):
        _refill(busy, random.Random(0), group=1)
        busy.step()
    busy.submit("a.0", 1, alone=True)
    lonely = busy.runs["a.0"].waiting[-1].rollout
    company: set[int] = set()
    while busy.clock < 120 and lonely not in {e.waiting.rollout for e in busy.ended}:
        _refill(busy, random.Random(0), group=1)
        busy.step()
        if lonely in busy.aboard:
            company.add(sum(a.runner == busy.aboard[lonely].runner for a in busy.aboard.values()))

    assert lonely in {e.waiting.rollout for e in busy.ended}
    assert company == {1}


def test_a_large_rollout_is_not_starved_by_small_ones() -> None:
    busy = yard({"large": 1.0, "small": 1.0}, slots=4, durations=_lengths(5, {"large": 3.0, "small": 3.0}))
    busy.submit("small.0", 2_000)
    for _ in range(20):
        busy.step()
    busy.submit("large.0", 1, demand=Capacity(slots=4))
    while busy.clock < 60 and busy.runs["large.0"].waiting:
        busy.step()

    assert not busy.runs["large.0"].waiting


def test_work_that_no_runner_could_host_says_so_and_holds_nobody_up() -> None:
    busy = yard({"a": 1.0, "b": 1.0}, slots=4, durations=lambda _: 1.0)
    busy.submit("a.0", 1, demand=Capacity(slots=1, gpu=1))
    busy.clock += 60
    busy.submit("b.0", 9)

    dealt = busy.step()

    assert dealt.refusals["a.0"] is Refusal.TOO_LARGE
    assert [g.run for g in dealt.grants] == ["b.0"] * 4


def test_a_pool_without_runners_says_so() -> None:
    busy = yard({"a": 1.0}, slots=4, runners=0, durations=lambda _: 1.0)
    busy.submit("a.0", 1)

    assert busy.step().refusals == {"a.0": Refusal.NO_RUNNER}


def test_waiting_raises_a_class_and_a_grant_takes_it_back() -> None:
    busy = yard({"a": 1.0}, slots=1, durations=lambda _: 1.0)
    busy.submit("a.0", 1)
    low = replace(busy.runs["a.0"], priority=Priority.LOW)

    assert rank(low, busy.now) == 2
    assert rank(low, busy.now + AGE_EVERY) == 1
    assert rank(low, busy.now + 10 * AGE_EVERY) == 0
    served = replace(low, granted_at=busy.now + 10 * AGE_EVERY)
    assert rank(served, busy.now + 10 * AGE_EVERY + timedelta(seconds=1)) == 2


def test_often_preempted_work_rises_a_class_and_goes_first_in_its_run() -> None:
    busy = yard({"a": 1.0}, slots=1, durations=lambda _: 1.0)
    busy.submit("a.0", 2)
    victim = replace(busy.runs["a.0"].waiting[1], preemptions=BOOST_AFTER)
    busy.runs["a.0"] = replace(
        busy.runs["a.0"], priority=Priority.LOW, waiting=(busy.runs["a.0"].waiting[0], victim)
    )

    (grant,) = busy.step().grants

    assert (grant.rollout, grant.rank) == (victim.rollout, 1)


@given(
    st.dictionaries(
        st.integers(0, 9).map(str),
        st.builds(
            Standing,
            weight=st.floats(0.1, 10),
            deficit=st.floats(-100, 100),
            share=st.floats(0, 1),
            waited=st.booleans(),
        ),
    ),
    st.floats(0, 5),
)
def test_what_those_who_wait_are_owed_adds_up_to_nothing(
    standings: dict[str, Standing], seconds: float
) -> None:
    waiting = {k for k, s in standings.items() if s.waited}
    after = accrue(standings, seconds=seconds)

    assert sum(after[k] for k in waiting) == pytest.approx(
        sum(standings[k].deficit for k in waiting), abs=1e-6
    )
    for key in set(standings) - waiting:
        assert min(0.0, standings[key].deficit) <= after[key] <= 0.0


def test_the_dealer_takes_the_head_of_a_queue_as_it_stands() -> None:
    """Requeued members of an old group come before new groups."""
    busy = yard({"a": 1.0}, slots=1, durations=lambda _: 1.0)
    items = tuple(
        Waiting(rollout=r, group=r[0], demand=ONE_SLOT, queued_at=busy.now) for r in ("b1", "a1", "a2")
    )
    busy.runs["a.0"] = replace(busy.runs["a.0"], waiting=items)

    assert [g.rollout for g in busy.step().grants] == ["b1"]
    assert Runner(incarnation="x", last_heartbeat=busy.now, capacity=ONE_SLOT).room == ONE_SLOT
