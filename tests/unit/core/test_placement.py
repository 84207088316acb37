"""Placement: a grant never exceeds what is free in any component, and who must be alone is."""

from collections import defaultdict
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.capacity import NOTHING, ONE_SLOT, Capacity, total
from tiltyard.core.fleet import Runner
from tiltyard.core.placement import Placement

NOW = datetime(2026, 1, 1, tzinfo=UTC)
amounts = st.builds(
    Capacity,
    slots=st.integers(0, 6),
    cpu=st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]),
    memory_mb=st.integers(0, 4).map(lambda n: n * 512),
    gpu=st.integers(0, 2),
)
demands = st.builds(
    Capacity, slots=st.integers(1, 3), cpu=st.sampled_from([0.0, 0.1, 1.0]), gpu=st.integers(0, 1)
)
runners = st.lists(
    st.builds(
        Runner,
        incarnation=st.uuids().map(str),
        last_heartbeat=st.just(NOW),
        capacity=amounts,
        used=amounts,
        aboard=st.integers(0, 2),
        draining=st.booleans(),
        ill=st.booleans(),
        lonely=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda r: r.incarnation,
)
queues = st.lists(st.tuples(demands, st.booleans()), max_size=20)


def _runner(name: str = "a", *, slots: int = 4, aboard: int = 0, **more: int) -> Runner:
    return Runner(
        incarnation=name,
        last_heartbeat=NOW,
        capacity=Capacity(slots=slots, **more),
        aboard=aboard,
        used=Capacity(slots=aboard),
    )


def _place(queue: list[tuple[Capacity, bool]], fleet: list[Runner]) -> dict[str, list[int]]:
    """Places in the queue by runner, where there was room."""
    placement = Placement(fleet)
    placed: dict[str, list[int]] = defaultdict(list)
    for n, (demand, alone) in enumerate(queue):
        name = placement.place(demand, alone=alone)
        if name is not None:
            placed[name].append(n)
    return placed


@given(queues, runners)
def test_no_component_of_a_runner_is_given_twice(
    queue: list[tuple[Capacity, bool]], fleet: list[Runner]
) -> None:
    by_name = {r.incarnation: r for r in fleet}

    for name, given_to in _place(queue, fleet).items():
        runner = by_name[name]
        assert not runner.draining
        assert not runner.lonely
        assert total([runner.used, *(queue[n][0] for n in given_to)]).fits(runner.capacity)


@given(queues, runners)
def test_a_lonely_rollout_is_alone_on_its_runner(
    queue: list[tuple[Capacity, bool]], fleet: list[Runner]
) -> None:
    by_name = {r.incarnation: r for r in fleet}

    for name, given_to in _place(queue, fleet).items():
        if any(queue[n][1] for n in given_to):
            assert len(given_to) == 1
            assert by_name[name].aboard == 0


@given(queues, runners)
def test_what_found_no_room_would_find_none_at_the_end_either(
    queue: list[tuple[Capacity, bool]], fleet: list[Runner]
) -> None:
    placed = _place(queue, fleet)
    left = {
        r.incarnation: NOTHING
        if any(queue[n][1] for n in placed.get(r.incarnation, []))
        else r.room - total(queue[n][0] for n in placed.get(r.incarnation, []))
        for r in fleet
    }
    refused = set(range(len(queue))) - {n for given_to in placed.values() for n in given_to}

    for n in refused:
        demand, alone = queue[n]
        assert alone or not any(demand.fits(room) for room in left.values() if room.slots > 0)


def test_work_is_spread_over_the_runners_with_most_room() -> None:
    fleet = [_runner("busy", aboard=3), _runner("idle"), _runner("half", aboard=2)]

    assert _place([(ONE_SLOT, False)] * 5, fleet) == {"idle": [0, 1, 3], "half": [2], "busy": [4]}


def test_a_lonely_rollout_that_finds_no_empty_runner_holds_nobody_up() -> None:
    assert _place([(ONE_SLOT, True), (ONE_SLOT, False)], [_runner(aboard=1)]) == {"a": [1]}


def test_a_lonely_rollout_looks_past_an_empty_runner_without_slots() -> None:
    assert _place([(ONE_SLOT, True)], [_runner("a", slots=0), _runner("b")]) == {"b": [0]}


def test_a_demand_looks_past_a_runner_that_lacks_one_component() -> None:
    gpu = Capacity(slots=1, gpu=1)

    assert _place([(gpu, False)] * 2, [_runner("many", slots=9), _runner("gpu", gpu=1)]) == {"gpu": [0]}


def test_fractions_of_a_cpu_add_up() -> None:
    tenth = Capacity(slots=1, cpu=0.1)

    assert len(_place([(tenth, False)] * 11, [_runner(slots=99, cpu=1)])["a"]) == 10


def test_what_a_runner_is_emptied_for_goes_to_nobody_below() -> None:
    yielding = Runner(incarnation="a", last_heartbeat=NOW, capacity=Capacity(slots=2), yields_to=1)
    placement = Placement([yielding])

    assert placement.place(ONE_SLOT, rank=2) is None
    assert placement.place(ONE_SLOT, rank=1) == "a"
    assert placement.place(ONE_SLOT, rank=0) == "a"


def test_a_held_runner_gets_nothing_and_the_same_one_is_held_again() -> None:
    fleet = [_runner("a", aboard=2), _runner("b", aboard=1), _runner("c", slots=1)]
    placement, again = Placement(fleet), Placement(fleet)
    large = Capacity(slots=4)

    assert placement.place(large) is None
    assert placement.hold(large) == again.hold(large) == "b"
    assert [placement.place(ONE_SLOT) for _ in range(4)] == ["a", "a", "c", None]


def test_nobody_is_held_for_what_no_runner_has() -> None:
    placement = Placement([_runner(slots=4)])

    assert placement.hold(Capacity(slots=5)) is None
    assert not placement.could_ever(Capacity(slots=5))
    assert placement.place(ONE_SLOT) == "a"


def test_a_shortage_is_named() -> None:
    demand = Capacity(slots=2, cpu=1.5, memory_mb=64)

    assert demand.lacking(Capacity(slots=4, cpu=1, memory_mb=64)) == ("cpu 1.5 of 1",)
    assert Capacity(slots=1, gpu=1).share(Capacity(slots=4)) == 1.0
    assert Capacity(slots=1, cpu=1).share(Capacity(slots=4, cpu=2)) == 0.5
