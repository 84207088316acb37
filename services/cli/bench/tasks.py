"""Tasks that benches run: as little work of their own as can be.

Guarantees: the scripted policy reads the right answer in the prompt and gives it half of the time.
Does not: resemble real work; the platform's own cost is what is measured."""

from collections.abc import Callable

from tiltyard.client import Client
from tiltyard.contracts.http import TaskSubmission
from tiltyard.contracts.task_spec import (
    AnswerComponent,
    Environment,
    Interface,
    Limits,
    Oracle,
    PythonTestsComponent,
    Resources,
    TaskSpec,
    Verifier,
)

TASKS = 64
TESTS = """
from solution import f


def test_adds():
    assert f(2) == {expected}
"""


def exact(number: int) -> TaskSpec:
    """The answer's text is compared: no sandbox."""
    return TaskSpec(
        name=f"bench/exact-{number}",
        instruction=f"answer: {number}\n",
        interface=Interface(stop=("\n",)),
        limits=Limits(max_tokens=16, episode_seconds=3_600),
        verifier=Verifier(components=(AnswerComponent(expected=str(number)),)),
        oracle=Oracle(answer=str(number)),
    )


def tested(number: int) -> TaskSpec:
    """The answer is code: its tests and itself run in two sandboxes."""
    component = PythonTestsComponent(
        files={"test_f.py": TESTS.format(expected=number + 2)}, expected=("test_f.test_adds",)
    )
    return TaskSpec(
        name=f"bench/tested-{number}",
        instruction=f"write f\nanswer: return n + {number}\n",
        environment=Environment(resources=Resources(memory_mb=64, pids=16, disk_mb=8)),
        interface=Interface(prefix="def f(n):\n    ", stop=("\n",)),
        limits=Limits(max_tokens=32, cpu_seconds=2, wall_seconds=20),
        verifier=Verifier(components=(component,)),
        oracle=Oracle(answer=f"return n + {number}"),
    )


def submit(client: Client, taskset: str, task: Callable[[int], TaskSpec], *, within: float) -> None:
    """Submit tasks and wait until all are ACTIVE.

    Raises TimeoutError after `within` seconds, and RuntimeError for one that is not admitted."""
    client.submit_tasks(
        [TaskSubmission(spec=task(n), tasksets=(taskset,), repeats=1) for n in range(1, TASKS + 1)]
    )
    view = client.wait_admissions(taskset, timeout=within)
    if view.active != TASKS:
        raise RuntimeError(f"taskset {taskset}: {view.active} of {TASKS} tasks were admitted")
