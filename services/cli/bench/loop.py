"""The whole loop with a scripted policy and trivial tasks: what the platform itself costs.

Guarantees: every rollout goes through every state of a training run, on real services; figures come from the
database's own times.
Does not: measure sandboxes or a model."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.stack import Options, free_port, running
from tiltyard.client import Client
from tiltyard.contracts.http import TaskSubmission
from tiltyard.contracts.run_config import FreshPolicy, Loss, Optimizer, TrainRun
from tiltyard.contracts.task_spec import AnswerComponent, Interface, Limits, Oracle, TaskSpec, Verifier

TASKS = 64
TASKSET = "bench"
GROUP, GROUPS = 8, 32
"""Members of a group, groups of a step."""
POLICY = FreshPolicy(hidden_size=16, layers=1, heads=2, max_positions=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One transport to measure."""

    state: Path
    broker: str
    rollouts: int

    def measure(self) -> dict[str, Any]:
        """Rollouts a second through every state, and milliseconds from grant to scored."""
        options = Options(
            state=self.state, port=free_port(), broker=self.broker, engine="scripted", slots=1024
        )
        with running(options) as stack, Client(stack.url, stack.token) as client:
            _submit(client)
            steps = -(-self.rollouts // (GROUP * GROUPS))
            run = client.start_run(_config(steps))
            while (view := client.run(run.id)).state in ("PENDING", "RUNNING"):
                time.sleep(0.2)
            if view.state != "COMPLETED":
                raise RuntimeError(f"the bench's run ended {view.state}: {view.reason}")
            ledger, latency = client.ledger(run.id), client.latency(run.id)
        return {
            "rollouts": ledger.created,
            "ledger_balanced": ledger.balanced,
            "rollouts_per_s": latency.ended_per_second,
            "grant_to_scored_ms": latency.grant_to_scored_ms,
            "queued_to_claimed_ms": latency.queued_to_claimed_ms,
        }


def _submit(client: Client) -> None:
    specs = [
        TaskSpec(
            name=f"bench/{n}",
            instruction=f"answer: {n}\n",
            interface=Interface(stop=("\n",)),
            limits=Limits(max_tokens=16),
            verifier=Verifier(components=(AnswerComponent(expected=str(n)),)),
            oracle=Oracle(answer=str(n)),
        )
        for n in range(TASKS)
    ]
    client.submit_tasks([TaskSubmission(spec=s, tasksets=(TASKSET,), repeats=1) for s in specs])
    while client.taskset(TASKSET).submitted:
        time.sleep(0.1)


def _config(steps: int) -> TrainRun:
    return TrainRun(
        kind="train",
        name="bench",
        taskset=TASKSET,
        policy=POLICY,
        steps=steps,
        groups_per_step=GROUPS,
        group_size=GROUP,
        max_staleness=3,
        minibatches=1,
        checkpoint_every=steps,
        optimizer=Optimizer(learning_rate=1e-5, warmup_steps=0),
        loss=Loss(importance="bypass"),
    )
