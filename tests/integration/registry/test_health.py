"""Health, readiness, metrics and faults of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.integration.registry.documents import submission
from tiltyard.core.outcome import RULINGS
from tiltyard.core.rollout import State
from tiltyard.objects import open_store
from tiltyard.testing.rows import Rows

NOWHERE = "postgresql://postgres@127.0.0.1:1/none"


def test_it_is_ready_when_database_and_object_store_answer(make_client: Callable[..., TestClient]) -> None:
    client = make_client(token=None)
    assert client.get("/healthz").json()["status"] == "ok"
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]) == (200, {"database": "ok", "objects": "ok"})


def test_without_a_database_it_lives_but_is_not_ready_and_says_what_to_do(
    make_client: Callable[..., TestClient],
) -> None:
    client = make_client(NOWHERE)
    assert client.get("/healthz").status_code == 200
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["objects"] == "ok"
    assert "OperationalError" in ready.json()["checks"]["database"]
    answer = client.post("/v1/tasks", json=submission())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.json()["detail"] == "the database does not answer; nothing was changed, try again"


def test_an_unmigrated_database_is_not_ready(
    make_client: Callable[..., TestClient], empty_database_url: str
) -> None:
    answer = make_client(empty_database_url).get("/readyz")
    assert answer.status_code == 503
    assert "alembic_version" in answer.json()["checks"]["database"]


def test_an_object_store_that_is_gone_is_not_ready(
    make_client: Callable[..., TestClient], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    client = make_client(store=open_store(f"file://{tmp_path}/file/objects"))
    assert client.put("/v1/artifacts", content=b"x").status_code in (502, 503)


def test_metrics_count_states_and_failures_under_closed_labels(
    make_client: Callable[..., TestClient], rows: Rows
) -> None:
    rows.group(rows.run(), 3)
    client = make_client(token=None)
    client.get("/healthz")
    found = client.get("/metrics").text
    assert 'tiltyard_rollouts{state="QUEUED"} 3.0' in found
    assert 'tiltyard_runs{state="RUNNING"} 1.0' in found
    assert found.count("tiltyard_rollouts{") == len(State)
    assert found.count("tiltyard_failures{failure_kind=") == sum(not r.valid for r in RULINGS.values())


def test_requests_are_counted_by_route_never_by_path(make_client: Callable[..., TestClient]) -> None:
    client = make_client()
    for name in ("a", "b", "c"):
        client.get(f"/v1/tasks/{name}")
        client.get(f"/unknown/{name}")
    found = client.get("/metrics").text
    assert 'route="/v1/tasks/{reference:path}",status="4xx"} 3.0' in found
    assert 'route="none",status="4xx"} 3.0' in found
    assert "/unknown/" not in found


def test_a_fault_of_ours_is_a_500_with_an_id_and_nothing_of_its_inside(
    make_client: Callable[..., TestClient], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("secret inside")

    answer = make_client(store=Broken()).put("/v1/artifacts", content=b"x")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "under error_id" in answer.json()["detail"]


def test_openapi_has_examples_bodies_and_problems(api: TestClient) -> None:
    document = api.get("/openapi.json").json()
    body = document["paths"]["/v1/tasks"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/TaskSubmission"}
    assert body["examples"]["task-add"]["value"]["spec"]["name"] == "examples/add"
    run = document["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]
    assert run["examples"]["run-train"]["value"]["kind"] == "train"
    text = str(document)
    for name in ("TaskSpec", "TrainRun", "Problem", "TaskView"):
        assert name in document["components"]["schemas"]
    refs = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert refs <= set(document["components"]["schemas"])


def test_each_example_is_accepted_by_the_api(api: TestClient) -> None:
    document = api.get("/openapi.json").json()
    body = document["paths"]["/v1/tasks"]["post"]["requestBody"]["content"]["application/json"]
    for example in body["examples"].values():
        assert api.post("/v1/tasks", json=example["value"]).status_code == 201
