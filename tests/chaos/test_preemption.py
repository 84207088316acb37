"""Classes contend for real runners: a high run takes what a low one fills, and no two go round in a circle.

`TILTYARD_CONTENTION_SECONDS=600 infra/dev/soak 1 -k contention` keeps runs of all classes arriving for ten
minutes."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from services.cli.stack import Stack, running
from tests.chaos.arena import HUNG, ROWS, Row
from tests.e2e.scenario import finished, options, submit, train_run, wait_until
from tiltyard.client import Client
from tiltyard.contracts.http import RunView
from tiltyard.contracts.run_config import EvaluationRun
from tiltyard.core.fairness import BOOST_AFTER, Priority

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(1_800)]
SLOTS = 4
EPISODE_MS = "20000"
"""Long enough that a class is told to yield before it is done."""
SECONDS = float(os.environ.get("TILTYARD_CONTENTION_SECONDS", "0"))


@dataclass(kw_only=True)
class Fleet:
    """A stack of a few slots, and a policy to evaluate."""

    stack: Stack
    client: Client
    policy: str
    made: int = 0

    def evaluate(self, priority: Literal["low", "normal", "high"], *, samples: int = 1) -> RunView:
        self.made += 1
        config = EvaluationRun(
            kind="evaluation",
            name=f"{priority}-{self.made}",
            taskset="scripted",
            policy=self.policy,
            samples=samples,
            priority=priority,
        )
        return self.client.start_run(config)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.database_url) as connection:
            return connection.execute(query, values).fetchall()  # type: ignore[arg-type]

    def until(self, run: RunView, *, aboard: int) -> None:
        query = "SELECT count(*) FROM rollouts WHERE run_id = %s AND state = 'RUNNING'"
        wait_until(
            lambda: self.rows(query, run.id)[0][0] >= aboard, seconds=HUNG, what=f"{aboard} of {run.name}"
        )

    def yielded(self) -> Counter[str]:
        """How often each rollout was told to yield."""
        return Counter(dict(self.rows("SELECT id, preemptions FROM rollouts WHERE preemptions > 0")))

    def waited(self, run: RunView) -> timedelta:
        """From the first of a run's rollouts queued to the first granted."""
        query = "SELECT min(t.at) FROM transitions t JOIN rollouts r ON r.id = t.rollout_id"
        ((queued,),) = self.rows(f"{query} WHERE r.run_id = %s AND t.seq = 1", run.id)
        ((granted,),) = self.rows(f"{query} WHERE r.run_id = %s AND t.\"end\" = 'GRANTED'", run.id)
        return granted - queued

    def balances(self, *runs: RunView) -> None:
        for run in runs:
            ledger = self.client.ledger(run.id)
            assert ledger.discrepancies == (), run.name
            assert ledger.balanced
        ((charged,),) = self.rows("SELECT sum(infrastructure_failures) FROM rollouts")
        assert charged == 0, "yielding costs no retry"
        assert not [r for r, n in self.yielded().items() if n > BOOST_AFTER]
        highest = "SELECT count(*) FROM rollouts r JOIN runs run ON run.id = r.run_id WHERE r.preemptions > 0"
        ((taken,),) = self.rows(f"{highest} AND run.config->>'priority' = 'high'")
        assert taken == 0, "nothing is above high"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    state: Path = tmp_path_factory.mktemp("preemption") / "state"
    chosen = replace(options(state), slots=SLOTS, extra={"TILTYARD_SCRIPT_LATENCY_MS": EPISODE_MS})
    with running(chosen) as stack, Client(stack.url, stack.token) as client:
        submit(client, SLOTS)
        base = client.start_run(train_run("base", steps=1))
        published = "SELECT count(*) FROM policy_versions WHERE run_id = %s"
        fleet = Fleet(stack=stack, client=client, policy="base@0")
        wait_until(lambda: fleet.rows(published, base.id)[0][0] > 0, seconds=HUNG, what="a policy")
        client.cancel_run(base.id)
        left = "SELECT count(*) FROM rollouts WHERE state = 'CANCELLING'"
        wait_until(lambda: fleet.rows(left)[0][0] == 0, seconds=HUNG, what="an empty fleet")
        yield fleet


def test_a_high_run_takes_the_fleet_that_a_low_one_fills_and_both_complete(fleet: Fleet) -> None:
    started = time.monotonic()
    low = fleet.evaluate("low")
    fleet.until(low, aboard=SLOTS)
    high = fleet.evaluate("high")

    assert finished(fleet.client, high, seconds=2 * HUNG).state == "COMPLETED"
    assert finished(fleet.client, low, seconds=2 * HUNG).state == "COMPLETED"

    reasons = fleet.rows("SELECT DISTINCT reason FROM transitions WHERE \"end\" = 'PREEMPTING'")
    assert reasons == [(f"yields to run {high.id}",)]
    fleet.balances(low, high)
    shown = [fleet.client.rollout(r) for r in fleet.yielded()]
    assert all("PREEMPTING" in {t.end for t in s.transitions} for s in shown)
    yielded, waited = fleet.yielded().total(), fleet.waited(high).total_seconds()
    note = f"high waited {waited:.1f} s, {yielded} yielded"
    ROWS.append(
        Row(
            fault="a high run arrives on a full fleet",
            rollouts=2 * SLOTS,
            fenced=0,
            again=yielded,
            dead=0,
            seconds=time.monotonic() - started,
            note=note,
        )
    )


@pytest.mark.skipif(not SECONDS, reason="TILTYARD_CONTENTION_SECONDS says for how long; it is not set")
def test_contention_of_all_classes_goes_round_in_no_circle(fleet: Fleet) -> None:
    began, runs = time.monotonic(), list[RunView]()
    while time.monotonic() - began < SECONDS:
        living = [r for r in runs if fleet.client.run(r.id).state in ("PENDING", "RUNNING")]
        for priority in Priority:
            if not any(r.name.startswith(priority) for r in living):
                runs.append(fleet.evaluate(priority.value))
        time.sleep(7)
    for run in runs:
        assert finished(fleet.client, run, seconds=SECONDS + HUNG).state == "COMPLETED"

    fleet.balances(*runs)
    told = fleet.yielded()
    ROWS.append(
        Row(
            fault=f"classes contend for {SECONDS:g} s",
            rollouts=SLOTS * len(runs),
            fenced=0,
            again=told.total(),
            dead=0,
            seconds=time.monotonic() - began,
            note=f"{len(runs)} runs; told to yield at most {max(told.values(), default=0)} times each",
        )
    )
