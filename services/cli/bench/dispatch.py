"""What dispatch costs, and how much it carries at once, on one transport.

Guarantees: real services; rates and latencies come from the transitions' own times, and what is in flight is
counted in rows while it is in flight.
Does not: measure a model; the engine recites, and for `in_flight` it is slow on purpose."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.bench.loop import EXACT, RULES, completed, fleet, train
from services.cli.bench.tasks import TASKS, exact, submit, tested
from services.cli.demo.footprint import memory_mb, processes_of
from services.cli.stack import Stack, running
from tiltyard.client import Client
from tiltyard.contracts.http import Latency
from tiltyard.contracts.run_config import EvaluationRun

TESTED = "bench-tested"
"""Taskset of tasks whose tests run in sandboxes."""
TRICKLE, SAMPLES = 4, 4
"""Groups in flight, and members of each, while grants into a free fleet are timed."""
FILL_PER_SECOND = 80
"""The slow engine answers after the time that filling the fleet takes at this rate."""
LEAST_LATENCY = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """One transport to measure."""

    state: Path
    broker: str
    rollouts: int
    in_flight: int
    """Rollouts to hold in flight at once."""

    def measure(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Rates without and with sandboxes, the latency of a grant, and the fleet's memory when full."""
        with running(fleet(self.state, self.broker)) as stack, Client(stack.url, stack.token) as client:
            submit(client, EXACT, exact)
            submit(client, TESTED, tested)
            say(f"{self.rollouts} rollouts without a sandbox")
            plain = train(client, EXACT, self.rollouts)
            say(f"{self.rollouts} rollouts with sandboxes")
            sandboxed = train(client, TESTED, self.rollouts)
            say("grants into a free fleet")
            granted = _evaluate(client, "bench-trickle", samples=SAMPLES, window=TRICKLE)
        say(f"{self.in_flight} rollouts in flight")
        full = self._full()
        return {
            "rollouts_per_s": plain["rollouts_per_s"],
            "rollouts_per_s_with_sandbox": sandboxed["rollouts_per_s"],
            "grant_ms": granted.queued_to_claimed_ms,
            "grant_ms_under_load": plain["queued_to_claimed_ms"],
            **full,
            "ledgers_balanced": plain["ledger_balanced"]
            and sandboxed["ledger_balanced"]
            and full["ledger_balanced"],
        }

    def _full(self) -> dict[str, Any]:
        """The fleet held full by an engine that takes its time."""
        latency = max(LEAST_LATENCY, self.in_flight / FILL_PER_SECOND)
        options = fleet(
            self.state, self.broker, slots=self.in_flight, script_latency_ms=str(int(latency * 1_000))
        )
        samples = -(-self.in_flight // TASKS)
        with running(options) as stack, Client(stack.url, stack.token) as client:
            run = client.start_run(_evaluation("bench-full", samples=samples, window=TASKS))
            peak, memory = _peak(client, stack, run.id, self.in_flight)
            completed(client, run)
            ledger = client.ledger(run.id)
        return {
            "in_flight": peak,
            "rss_mb": round(memory),
            "ledger_balanced": ledger.balanced,
        }


def _peak(client: Client, stack: Stack, run_id: str, wanted: int) -> tuple[int, float]:
    """Most rollouts RUNNING at once, and the stack's memory in MiB then; until some have ended."""
    peak, memory = 0, 0.0
    while client.run(run_id).state in ("PENDING", "RUNNING"):
        states = client.stats(run_id).rollouts
        if states.get("RUNNING", 0) > peak:
            peak = states["RUNNING"]
            memory = memory_mb(processes_of(stack.options.state))
        if peak >= wanted or states.get("EVALUATED", 0):
            break
        time.sleep(0.5)
    return peak, memory


def _evaluation(name: str, *, samples: int, window: int) -> EvaluationRun:
    return EvaluationRun(
        kind="evaluation",
        name=name,
        taskset=EXACT,
        policy=f"train-{EXACT}@latest",
        samples=samples,
        window=window,
        rollouts=RULES,
    )


def _evaluate(client: Client, name: str, *, samples: int, window: int) -> Latency:
    run = completed(client, client.start_run(_evaluation(name, samples=samples, window=window)))
    return client.latency(run.id)
