"""The client over a real HTTP server."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.registry.documents import TOKEN, activate, training
from tests.integration.registry.episodes import attempt, grading, keep
from tiltyard.client import ApiError, Client
from tiltyard.contracts.http import TaskSubmission
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.rows import Rows, addition


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server, TOKEN) as made:
        yield made


def test_hundreds_of_tasks_go_in_batches_and_come_back_in_pages(client: Client, work: UnitOfWork) -> None:
    submissions = [TaskSubmission(spec=addition(f"t/{n}"), tasksets=("many",)) for n in range(250)]
    accepted = client.submit_tasks(submissions)
    assert [a.name for a in accepted] == [s.spec.name for s in submissions]
    assert [a.id for a in accepted] == [s.spec.version() for s in submissions]
    assert len({t.id for t in client.tasks(taskset="many")}) == 250
    activate(work)
    assert client.wait_admissions("many").active == 250


def test_a_run_is_found_by_a_name_with_slashes_and_cancelled(client: Client, work: UnitOfWork) -> None:
    client.submit_task(TaskSubmission(spec=addition(), tasksets=("mine",)))
    activate(work)
    run = client.start_run(training("sweeps/one"))
    assert client.run("sweeps/one") == run
    assert client.stats("sweeps/one").rollouts == {}
    assert client.ledger("sweeps/one").balanced
    assert list(client.steps("sweeps/one")) == []
    assert client.cancel_run("sweeps/one").state == "CANCELLED"
    assert client.wait_run("sweeps/one").state == "CANCELLED"


def test_artifacts_of_bytes_and_files_come_back_whole(client: Client, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000
    file = tmp_path / "data"
    file.write_bytes(data)
    view = client.upload_artifact(file)
    assert view.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert client.upload_artifact(data) == view
    assert client.download_artifact(view.digest) == data


def test_a_rollout_and_its_trace_are_read_as_documents(client: Client, rows: Rows, objects: Any) -> None:
    claim, _ = rows.produced(rows.run())
    record = attempt(claim, "return x")
    keep(rows, objects, claim, record, grading(claim))
    detail = client.rollout(claim.rollout_id)
    assert detail.attempts == (record,)
    assert [s["name"] for s in client.trace(claim.rollout_id).spans][:2] == ["episode", "chat"]
    assert {r.id for r in client.rollouts(run=claim.run_id)} >= {claim.rollout_id}
    assert client.run_object(claim.run_id, f"rollouts/{claim.rollout_id}/{claim.fence}/attempt.json.gz")


def test_a_wrong_token_and_a_wrong_name_are_told_apart(server: str, client: Client) -> None:
    with Client(server, "wrong") as stranger, pytest.raises(ApiError, match="401 Unauthorized"):
        next(stranger.tasks())
    with pytest.raises(ApiError, match="there is no taskset 'none'"):
        client.taskset("none")
    assert client.ready().status == "ok"
    assert client.fleet() == ()
