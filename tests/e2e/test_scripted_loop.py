"""The six services together on embedded parts, with the scripted policy."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from services.cli.stack import Stack, running
from tests.e2e.scenario import TASKSET, evaluation_run, finished, options, submit, train_run
from tiltyard.client import Client

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]
SIZE = 8


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(options(tmp_path_factory.mktemp("loop") / "state")) as stack:
        with Client(stack.url, stack.token) as client:
            submit(client, SIZE)
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.url, stack.token) as client:
        yield client


@pytest.fixture(scope="module")
def trained(client: Client) -> str:
    """A finished training run's id."""
    run = client.start_run(train_run("loop", steps=3))
    assert finished(client, run, seconds=180).state == "COMPLETED"
    return run.id


def _cli(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TILTYARD_URL": stack.url, "TILTYARD_TOKEN": stack.token}
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words], env=env, capture_output=True, text=True, timeout=60
    )


def test_a_training_run_publishes_a_version_a_step_and_its_ledger_balances(
    client: Client, trained: str
) -> None:
    assert [p.version for p in client.policies(trained)] == [3, 2, 1, 0]
    ledger = client.ledger(trained)
    assert ledger.discrepancies == ()
    assert ledger.balanced
    assert ledger.by_state["TRAINED"] == 3 * 4 * 4


def test_an_evaluation_run_scores_every_task_as_often_as_asked(client: Client, trained: str) -> None:
    run = client.start_run(evaluation_run("loop-eval", f"{trained}@latest", samples=4))
    assert finished(client, run, seconds=120).state == "COMPLETED"
    view = client.evaluation(run.id)
    assert (view.tasks, view.rollouts, view.valid) == (SIZE, SIZE * 4, SIZE * 4)
    assert view.mean is not None
    assert 0.2 < view.mean < 0.8
    assert client.ledger(run.id).balanced


def test_the_trace_of_a_rollout_spans_every_service(client: Client, trained: str) -> None:
    rollout = next(iter(client.rollouts(run=trained, state="TRAINED")))
    spans = client.trace(rollout.id).spans
    assert {"dispatcher", "runner", "rollout", "evaluator", "trainer"} <= {str(s["service"]) for s in spans}
    grant = next(s for s in spans if s["name"] == "grant")
    attempt = [s for s in spans if s["parent_id"] == grant["span_id"]]
    assert attempt, "the attempt hangs below its grant"


def test_the_command_line_names_the_failing_step(stack: Stack, client: Client, trained: str) -> None:
    failed = next(r for r in client.rollouts(run=trained) if r.reward == 0.0)
    told = _cli(stack, "rollout", "trace", failed.id)
    assert told.returncode == 0, told.stderr
    assert "tests" in told.stdout + told.stderr
    assert "SyntaxError" in told.stdout + told.stderr


def test_json_is_one_document_on_stdout(stack: Stack, trained: str) -> None:
    told = _cli(stack, "run", "ledger", trained, "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["balanced"] is True


def test_a_run_over_an_unknown_taskset_is_refused_with_what_to_do(client: Client) -> None:
    from tiltyard.client import ApiError

    with pytest.raises(ApiError, match="there is no taskset 'nowhere'"):
        client.start_run(train_run("lost", steps=1).model_copy(update={"taskset": "nowhere"}))
    assert client.taskset(TASKSET).active == SIZE
