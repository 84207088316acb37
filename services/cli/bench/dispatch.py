"""What dispatch costs, and how much it carries at once, on one transport.

Guarantees: real services; rates and latencies come from the transitions' own times, and what is in flight is
counted in rows while it is in flight.
Does not: measure a model; the engine recites, and for `in_flight` it is slow on purpose."""

import time
from dataclasses import dataclass
from pathlib import Path

from services.cli.bench.loop import EXACT, RULES, completed, fleet, train
from services.cli.bench.sheet import Sheet
from services.cli.bench.tasks import TASKS, exact, submit, tested
from services.cli.demo.footprint import memory_mb, processes_of
from services.cli.stack import Stack, running
from tiltyard.client import Client
from tiltyard.contracts.http import RunView
from tiltyard.contracts.run_config import EvaluationRun, RolloutRules

TESTED = "bench-tested"
"""Taskset of tasks whose tests run in sandboxes."""
TRICKLE, SAMPLES = 4, 4
"""Groups in flight, and members of each, while grants are timed."""
ONE_AT_A_TIME = RolloutRules(group_deadline_seconds=3_600, max_running=1)
FILL_PER_SECOND = 150
"""The slow engine answers after the time that filling the fleet takes at this rate, and a heartbeat more."""
HEARTBEAT = 12.0
LEAST_LATENCY = 20.0
LOOK = 0.5
"""Seconds between two looks."""
ABOARD = ("GRANTED", "RUNNING", "CANCELLING", "PREEMPTING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """One transport to measure."""

    name: str
    """Prefix of its figures."""
    state: Path
    broker: str
    rollouts: int
    sandboxed: int
    """Rollouts whose tests run in sandboxes."""
    queued: int
    """Rollouts of another run that wait while grants are timed."""
    in_flight: int
    """Rollouts to hold in flight at once."""
    objects: str = ""
    """Where records are kept; empty: a directory below `state`."""

    def measure(self, sheet: Sheet) -> None:
        """Every part, in order, on the sheet."""
        with sheet.part(self.name, seconds=sheet.seconds):
            sheet.left()
            options = fleet(self.state, self.broker, objects=self.objects)
            with running(options) as stack, Client(stack.url, stack.token) as client:
                self._plain(sheet, client)
                self._sandboxed(sheet, client)
                self._grants(sheet, client)
            self._full(sheet)

    def _plain(self, sheet: Sheet, client: Client) -> None:
        with sheet.part(f"{self.name}: {self.rollouts} rollouts without a sandbox"):
            submit(client, EXACT, exact, within=sheet.left())
            trained = train(client, EXACT, self.rollouts, within=sheet.left())
            sheet.put(self.name, {"rollouts_per_s": trained["rollouts_per_s"]})
            sheet.put(self.name, {"grant_ms_under_load": trained["queued_to_claimed_ms"]})
            self._balance(sheet, trained["ledger_balanced"])

    def _sandboxed(self, sheet: Sheet, client: Client) -> None:
        with sheet.part(f"{self.name}: {self.sandboxed} rollouts with sandboxes"):
            submit(client, TESTED, tested, within=sheet.left())
            trained = train(client, TESTED, self.sandboxed, within=sheet.left())
            sheet.put(self.name, {"rollouts_per_s_with_sandbox": trained["rollouts_per_s"]})
            self._balance(sheet, trained["ledger_balanced"])

    def _grants(self, sheet: Sheet, client: Client) -> None:
        """Grants of one run, while another, at its cap, has a long queue."""
        with sheet.part(f"{self.name}: grants beside {self.queued} queued rollouts"):
            queue = client.start_run(
                _evaluation(
                    "bench-queue", samples=-(-self.queued // TASKS), window=TASKS, rules=ONE_AT_A_TIME
                )
            )
            while (waiting := _states(client, queue).get("QUEUED", 0)) < self.queued - TASKS:
                sheet.left()
                time.sleep(LOOK)
            run = client.start_run(_evaluation("bench-trickle", samples=SAMPLES, window=TRICKLE))
            completed(client, run, within=sheet.left())
            figures = client.latency(run.id).queued_to_claimed_ms
            sheet.put(self.name, {"grant_ms": figures, "grant_ms_beside_queued": waiting})
            client.cancel_run(queue.id)
            _emptied(sheet, client, queue)

    def _full(self, sheet: Sheet) -> None:
        """The fleet held full by an engine that takes its time, and then cancelled."""
        latency = max(LEAST_LATENCY, self.in_flight / FILL_PER_SECOND + HEARTBEAT)
        options = fleet(
            self.state,
            self.broker,
            objects=self.objects,
            slots=self.in_flight,
            script_latency_ms=str(int(latency * 1_000)),
        )
        with sheet.part(f"{self.name}: {self.in_flight} rollouts in flight"):
            sheet.left()
            with running(options) as stack, Client(stack.url, stack.token) as client:
                self._fill(sheet, stack, client)

    def _fill(self, sheet: Sheet, stack: Stack, client: Client) -> None:
        samples = -(-self.in_flight // TASKS)
        run = client.start_run(_evaluation("bench-full", samples=samples, window=TASKS))
        peak, memory = _peak(sheet, client, stack, run, self.in_flight)
        sheet.put(self.name, {"in_flight": peak, "rss_mb": round(memory)})
        client.cancel_run(run.id)
        _emptied(sheet, client, run)
        self._balance(sheet, client.ledger(run.id).balanced)

    def _balance(self, sheet: Sheet, balanced: bool) -> None:
        before = sheet.figures.get(self.name, {}).get("ledgers_balanced", True)
        sheet.put(self.name, {"ledgers_balanced": before and balanced})


def _peak(sheet: Sheet, client: Client, stack: Stack, run: RunView, wanted: int) -> tuple[int, float]:
    """Most rollouts RUNNING at once, and the stack's memory in MiB then, held over a heartbeat."""
    peak, memory, full_since = 0, 0.0, None
    while full_since is None or time.monotonic() - full_since < HEARTBEAT:
        sheet.left()
        states = _states(client, run)
        if states.get("RUNNING", 0) > peak:
            peak = states["RUNNING"]
            memory = memory_mb(processes_of(stack.options.state))
        if peak >= wanted and full_since is None:
            full_since = time.monotonic()
        if states.get("PRODUCED", 0) + states.get("SCORED", 0) + states.get("EVALUATED", 0):
            break  # the first have ended: it gets no fuller
        time.sleep(LOOK)
    return peak, memory


def _emptied(sheet: Sheet, client: Client, run: RunView) -> None:
    """Wait until a cancelled run has nothing aboard."""
    while any(_states(client, run).get(state, 0) for state in ABOARD):
        sheet.left()
        time.sleep(LOOK)


def _states(client: Client, run: RunView) -> dict[str, int]:
    return client.stats(run.id).rollouts


def _evaluation(name: str, *, samples: int, window: int, rules: RolloutRules = RULES) -> EvaluationRun:
    return EvaluationRun(
        kind="evaluation",
        name=name,
        taskset=EXACT,
        policy=f"train-{EXACT}@latest",
        samples=samples,
        window=window,
        rollouts=rules,
    )
