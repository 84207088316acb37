"""The demo's tasks as an author would submit them.

Guarantees: specs like anybody's; nothing here reaches past the HTTP API."""

import json

from services.cli.demo.tasks import Split, Task, sft_examples, tasks
from tiltyard.contracts.http import TaskSubmission
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

ANSWER_TOKENS = 48
SANDBOX = Resources(memory_mb=128, pids=16, cpus=1.0, disk_mb=16)


def spec(task: Task) -> TaskSpec:
    """One generated task as a task spec."""
    cases = tuple(Case(args=c.args, expected=c.expected) for c in task.cases)
    return TaskSpec(
        name=f"demo/{task.name}",
        instruction=task.prompt,
        environment=Environment(resources=SANDBOX),
        interface=Interface(prefix=task.prefix, stop=("\n",)),
        limits=Limits(max_tokens=ANSWER_TOKENS, episode_seconds=60, cpu_seconds=2, wall_seconds=10),
        verifier=Verifier(components=(CasesComponent(entry_point="f", cases=cases),)),
        oracle=Oracle(answer=task.oracle),
        tags=("generated", task.family),
        difficulty=task.difficulty,
        lineage={"generator": "tiltyard demo", "family": task.family},
    )


def submissions(seed: int, split: Split, count: int, *, taskset: str, repeats: int) -> list[TaskSubmission]:
    """The first `count` tasks of a split, for one taskset."""
    return [
        TaskSubmission(spec=spec(t), tasksets=(taskset,), repeats=repeats) for t in tasks(seed, split, count)
    ]


def warm_start_lines(seed: int, count: int) -> bytes:
    """The SFT dataset: JSON lines of prompts and oracle solutions of other variants."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in sft_examples(seed, count))
