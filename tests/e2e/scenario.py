"""What e2e and chaos tests share: scripted tasks, a small training run, and how to wait for it.

Guarantees: tasks are graded in real sandboxes; the scripted policy is right about half of the time."""

import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from services.cli.stack import Options
from tiltyard.client import Client
from tiltyard.contracts.http import RunView, TaskSubmission
from tiltyard.contracts.run_config import EvaluationRun, FreshPolicy, Loss, Optimizer, RolloutRules, TrainRun
from tiltyard.contracts.task_spec import (
    Case,
    CasesComponent,
    Environment,
    Interface,
    Limits,
    Oracle,
    Resources,
    TaskSpec,
    Verifier,
)

TASKSET = "scripted"
TINY = FreshPolicy(hidden_size=16, layers=1, heads=2, max_positions=128)


def unused_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def options(state: Path, **others: object) -> Options:
    return Options(state=state, port=unused_port(), engine="scripted", sandboxes=4, **others)  # type: ignore[arg-type]


def task(number: int) -> TaskSpec:
    """Add `number`: the scripted policy answers with the line after `answer:`, or with its negation."""
    return TaskSpec(
        name=f"scripted/add-{number}",
        instruction=f"write f\nanswer: return n + {number}\n",
        environment=Environment(resources=Resources(memory_mb=64, pids=16, disk_mb=8)),
        interface=Interface(prefix="def f(n):\n    ", stop=("\n",)),
        limits=Limits(max_tokens=32, cpu_seconds=2, wall_seconds=20),
        verifier=Verifier(
            components=(
                CasesComponent(
                    entry_point="f", cases=tuple(Case(args=(n,), expected=n + number) for n in range(3))
                ),
            )
        ),
        oracle=Oracle(answer=f"return n + {number}"),
    )


def submit(client: Client, count: int) -> None:
    """Submit `count` tasks and wait until all are ACTIVE."""
    client.submit_tasks(
        [TaskSubmission(spec=task(n), tasksets=(TASKSET,), repeats=1) for n in range(1, count + 1)]
    )
    wait_until(lambda: client.taskset(TASKSET).submitted == 0, seconds=120, what="admissions")
    assert client.taskset(TASKSET).active == count


def train_run(name: str, *, steps: int) -> TrainRun:
    return TrainRun(
        kind="train",
        name=name,
        taskset=TASKSET,
        policy=TINY,
        steps=steps,
        groups_per_step=4,
        group_size=4,
        minibatches=1,
        checkpoint_every=2,
        optimizer=Optimizer(learning_rate=1e-4, warmup_steps=0),
        loss=Loss(importance="bypass"),
        rollouts=RolloutRules(infrastructure_retries=20, grader_retries=20),
    )


def evaluation_run(name: str, policy: str, *, samples: int) -> EvaluationRun:
    return EvaluationRun(kind="evaluation", name=name, taskset=TASKSET, policy=policy, samples=samples)


def finished(client: Client, run: RunView, *, seconds: float) -> RunView:
    wait_until(
        lambda: client.run(run.id).state not in ("PENDING", "RUNNING"),
        seconds=seconds,
        what=f"run {run.name}",
    )
    return client.run(run.id)


def wait_until(holds: Callable[[], bool], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} took longer than {seconds} s"
        time.sleep(0.2)
