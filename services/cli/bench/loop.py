"""The whole loop with a scripted policy and trivial tasks: what the platform itself costs.

Guarantees: every rollout goes through every state of a training run, on real services; figures come from the
database's own times.
Does not: measure a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.bench.sheet import Sheet
from services.cli.bench.tasks import exact, submit
from services.cli.stack import Options, free_port, running
from tiltyard.client import Client
from tiltyard.contracts.http import RunView
from tiltyard.contracts.run_config import FreshPolicy, Loss, Optimizer, RolloutRules, TrainRun

EXACT = "bench-exact"
"""Taskset of tasks that need no sandbox."""
GROUP, GROUPS = 8, 32
"""Members of a group, groups of a step."""
POLICY = FreshPolicy(hidden_size=16, layers=1, heads=2, max_positions=64)
RULES = RolloutRules(group_deadline_seconds=3_600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One transport to measure."""

    state: Path
    broker: str
    rollouts: int
    objects: str = ""

    def measure(self, sheet: Sheet, name: str) -> None:
        """Rollouts a second through every state, and milliseconds from grant to scored."""
        options = fleet(self.state, self.broker, objects=self.objects)
        with sheet.part(f"{name}: {self.rollouts} rollouts"):
            sheet.left()
            with running(options) as stack, Client(stack.url, stack.token) as client:
                submit(client, EXACT, exact, within=sheet.left())
                sheet.put(name, train(client, EXACT, self.rollouts, within=sheet.left()))


def fleet(state: Path, broker: str, *, slots: int = 1_024, objects: str = "", **settings: str) -> Options:
    """A stack for benches; `settings` are further `TILTYARD_…` variables."""
    extra = {f"TILTYARD_{name.upper()}": value for name, value in settings.items()}
    return Options(
        state=state,
        port=free_port(),
        broker=broker,
        objects=objects,
        engine="scripted",
        slots=slots,
        sandboxes=16,
        extra=extra,
    )


def train(client: Client, taskset: str, rollouts: int, *, within: float) -> dict[str, Any]:
    """Train for about this many rollouts, a multiple of a step's, and tell how fast they went.

    Raises TimeoutError after `within` seconds."""
    steps = -(-rollouts // (GROUP * GROUPS))
    run = completed(client, client.start_run(_config(taskset, steps)), within=within)
    ledger, latency = client.ledger(run.id), client.latency(run.id)
    return {
        "rollouts": ledger.created,
        "ledger_balanced": ledger.balanced,
        "rollouts_per_s": latency.ended_per_second,
        "grant_to_scored_ms": latency.grant_to_scored_ms,
        "queued_to_claimed_ms": latency.queued_to_claimed_ms,
    }


def completed(client: Client, run: RunView, *, within: float) -> RunView:
    """Wait for a run; one that takes longer is cancelled. Raises TimeoutError, and RuntimeError unless it
    completes."""
    try:
        view = client.wait_run(run.id, timeout=within)
    except TimeoutError:
        client.cancel_run(run.id)
        raise
    if view.state != "COMPLETED":
        raise RuntimeError(f"the bench's run {view.name} ended {view.state}: {view.reason}")
    return view


def _config(taskset: str, steps: int) -> TrainRun:
    return TrainRun(
        kind="train",
        name=f"train-{taskset}",
        taskset=taskset,
        policy=POLICY,
        steps=steps,
        groups_per_step=GROUPS,
        group_size=GROUP,
        max_staleness=3,
        minibatches=1,
        checkpoint_every=steps,
        optimizer=Optimizer(learning_rate=1e-5, warmup_steps=0),
        loss=Loss(importance="bypass"),
        rollouts=RULES,
    )
