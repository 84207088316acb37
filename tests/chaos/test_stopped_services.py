"""Services that are frozen, and thaw when others have gone on without them."""

import time

import pytest

from tests.chaos.arena import HUNG, Arena
from tests.e2e.scenario import wait_until
from tiltyard.contracts.http import RunView

pytestmark = [pytest.mark.sandbox, pytest.mark.rabbitmq, pytest.mark.s3, pytest.mark.timeout(600)]
FROZEN_SECONDS = 2.0


def test_a_runner_that_thaws_after_it_was_given_up_commits_nothing(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        with arena.frozen("runner"):
            living = [one for (one,) in arena.rows("SELECT incarnation FROM runners WHERE alive")]
            arena.give_up(living)
        late = "SELECT count(*) FROM runners WHERE alive AND NOT incarnation = ANY(%s)"
        wait_until(lambda: arena.value(late, living) > 0, seconds=HUNG, what="a new incarnation")
        return "given up while frozen"

    arena.survives("runner frozen, given up, thawed", strike)


def test_services_that_freeze_for_a_while_go_on(arena: Arena) -> None:
    def strike(run: RunView) -> str:
        with arena.frozen("evaluator"), arena.frozen("dispatcher"), arena.frozen("trainer"):
            time.sleep(FROZEN_SECONDS)
        return "all three at once"

    arena.survives("evaluator, leader, trainer frozen", strike)
