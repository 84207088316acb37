"""The network between a runner and what it needs is cut, or falls silent; what it still sends comes late."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.arena import HUNG, Arena
from tests.chaos.far import LOCAL, Far, far_runner
from tests.e2e.scenario import wait_until
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
FAULT_SECONDS = 2.0
STEPS = 4
"""Enough that rollouts are aboard until the right moment has come."""
IN_TRANSACTION = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tiltyard-runner%%'"
    " AND (state = 'active' OR state LIKE 'idle in transaction%%')"
)


@pytest.fixture(scope="module")
def far(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    folder: Path = tmp_path_factory.mktemp("far")
    with far_runner(arena, folder) as runner:
        yield runner


@pytest.mark.parametrize("way", ["database", "broker", "objects"])
def test_a_runner_that_is_cut_off_for_a_while_goes_on(arena: Arena, far: Far, way: str) -> None:
    def strike(run: RunView) -> str:
        far.until_aboard()
        proxy = getattr(far, way)
        proxy.cut()
        time.sleep(FAULT_SECONDS)
        proxy.freeze()
        time.sleep(FAULT_SECONDS)
        proxy.pass_on()
        return "refused, then silent"

    arena.survives(f"network cut: runner and {way}", strike)


def test_a_commit_that_arrives_after_its_runner_was_given_up_counts_for_nothing(
    arena: Arena, far: Far
) -> None:
    """What the runner sent lies in the network while its rollouts are taken from it and run elsewhere."""

    def strike(run: RunView) -> str:
        far.until_aboard()
        _silence_between_transactions(arena, far)
        time.sleep(FAULT_SECONDS)  # the engine answers, records are stored, commits are sent
        taken = arena.give_up(far.incarnations())
        arena.client.drain(LOCAL, draining=False)
        again = "SELECT count(*) FROM attempts WHERE rollout_id = ANY(%s) AND outcome IS NOT NULL"
        wait_until(lambda: arena.value(again, taken) > len(taken), seconds=HUNG, what="another attempt's end")
        far.database.pass_on()
        wait_until(lambda: bool(far.incarnations()), seconds=HUNG, what="a new far incarnation")
        return f"{len(taken)} given up with their commits on the way"

    arena.survives("commits held up until their fence is past", strike, steps=STEPS)


def _silence_between_transactions(arena: Arena, far: Far) -> None:
    """Freeze the way to the database while rollouts are aboard and no transaction is under way."""
    deadline = time.monotonic() + HUNG
    while True:
        far.database.freeze()
        if arena.value(IN_TRANSACTION) == 0 and far.aboard():
            return
        far.database.pass_on()
        assert time.monotonic() < deadline, "the runner is idle or in a transaction at every look"
        time.sleep(0.05)
