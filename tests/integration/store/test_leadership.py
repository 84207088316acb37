"""Leadership: of many that ask, one leads, and a deposed one writes nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.integration.store.world import World
from tiltyard.store import leadership
from tiltyard.store.leadership import Leader, NotLeading


def _lead(world: World, holder: str) -> Leader | None:
    with world.work() as session:
        return leadership.lead(session, "loop", holder)


def _leads(world: World, holder: str) -> Leader:
    leader = _lead(world, holder)
    assert leader is not None
    return leader


def _lapse(world: World) -> None:
    world.sql("UPDATE leaderships SET lease_until = clock_timestamp() - interval '1 second'")


def test_the_first_to_ask_leads_and_the_second_stands_by(world: World) -> None:
    first = _leads(world, "a")

    assert first.epoch == 1
    assert _lead(world, "b") is None


def test_renewing_keeps_the_epoch_and_the_trust(world: World) -> None:
    first = _leads(world, "a")

    assert _leads(world, "a") == first


def test_another_leads_after_the_lease_under_a_new_epoch(world: World) -> None:
    first = _leads(world, "a")
    _lapse(world)

    second = _leads(world, "b")

    assert second.epoch == first.epoch + 1
    assert second.trusted_since > first.trusted_since
    assert _lead(world, "a") is None


def test_of_many_that_ask_at_once_one_leads(world: World) -> None:
    together = threading.Barrier(6)

    def ask(holder: str) -> Leader | None:
        together.wait()
        return _lead(world, holder)

    with ThreadPoolExecutor(6) as pool:
        leaders = [leader for leader in pool.map(ask, "abcdef") if leader is not None]

    assert len(leaders) == 1


def test_a_deposed_leaders_guarded_write_is_refused(world: World) -> None:
    first = _leads(world, "a")
    _lapse(world)
    _leads(world, "b")

    with pytest.raises(NotLeading, match=r"a no longer leads loop \(epoch 1\)"), world.work() as session:
        leadership.still(session, first)


def test_the_same_holder_under_an_older_epoch_is_deposed_too(world: World) -> None:
    old = _leads(world, "a")
    _lapse(world)
    _leads(world, "b")
    _lapse(world)
    _leads(world, "a")

    with pytest.raises(NotLeading), world.work() as session:
        leadership.still(session, old)


def test_nobody_takes_over_while_a_guarded_write_is_open(world: World) -> None:
    first = _leads(world, "a")
    _lapse(world)

    with ThreadPoolExecutor(1) as pool:
        with world.work() as session:
            leadership.still(session, first)
            asking = pool.submit(_lead, world, "b")
            assert not asking.done()
            epoch = world.value("SELECT epoch FROM leaderships")
        second = asking.result()

    assert epoch == 1
    assert second is not None
    assert second.epoch == 2


def test_a_lease_that_lapsed_while_nobody_asked_distrusts_time(world: World) -> None:
    """The loop was away: so may the runners' heartbeats have been."""
    first = _leads(world, "a")
    _lapse(world)

    assert _leads(world, "a").trusted_since > first.trusted_since


def test_distrusting_time_begins_the_trust_anew(world: World) -> None:
    first = _leads(world, "a")
    world.sql("UPDATE leaderships SET trusted_since = clock_timestamp() - interval '1 hour'")

    with world.work() as session:
        wary = leadership.distrust_time(session, first)

    assert wary.trusted_since - first.trusted_since < timedelta(minutes=1)
    assert _leads(world, "a").trusted_since == wary.trusted_since


def test_a_deposed_leader_cannot_sway_the_trust_of_the_next(world: World) -> None:
    first = _leads(world, "a")
    _lapse(world)
    _leads(world, "b")

    with pytest.raises(NotLeading), world.work() as session:
        leadership.distrust_time(session, first)


def test_resigning_lets_the_next_one_lead_at_once(world: World) -> None:
    first = _leads(world, "a")
    with world.work() as session:
        leadership.resign(session, first)

    assert _leads(world, "b").epoch == 2


def test_resigning_after_having_been_deposed_deposes_nobody(world: World) -> None:
    first = _leads(world, "a")
    _lapse(world)
    _leads(world, "b")
    with world.work() as session:
        leadership.resign(session, first)

    assert _lead(world, "c") is None


def test_loops_of_different_names_are_led_apart(world: World) -> None:
    _leads(world, "a")

    with world.work() as session:
        assert leadership.lead(session, "another", "b") is not None
