"""Rollouts and the fleet over HTTP."""

from typing import Any

from fastapi.testclient import TestClient

from tests.integration.registry.episodes import attempt, grading, keep
from tiltyard.contracts.records import attempt_key
from tiltyard.testing.rows import Rows


def test_a_rollout_shows_its_moves_attempts_and_gradings(api: TestClient, rows: Rows, objects: Any) -> None:
    claim, _ = rows.produced(rows.run())
    record, graded = attempt(claim, "return x+2"), grading(claim)
    keep(rows, objects, claim, record, graded)
    detail = api.get(f"/v1/rollouts/{claim.rollout_id}").json()
    assert [t["end"] for t in detail["transitions"]] == ["QUEUED", "GRANTED", "RUNNING", "PRODUCED"]
    assert detail["rollout"]["task_name"] == "add/1"
    assert (detail["rollout"]["outcome"], detail["rollout"]["reward"]) == ("graded", 0.0)
    assert detail["rollout"]["trace_id"] == claim.traceparent.split("-")[1]
    assert detail["attempts"] == [record.model_dump(mode="json")]
    assert detail["gradings"] == [graded.model_dump(mode="json")]
    assert detail["missing"] == []


def test_a_record_that_is_lost_or_corrupt_is_named_not_left_out(
    api: TestClient, rows: Rows, objects: Any
) -> None:
    lost, corrupt = rows.produced(rows.run())
    key = attempt_key(corrupt.run_id, corrupt.rollout_id, corrupt.fence)
    objects.put(key, b"no gzip")
    (missing,) = api.get(f"/v1/rollouts/{lost.rollout_id}").json()["missing"]
    assert missing.startswith(attempt_key(lost.run_id, lost.rollout_id, lost.fence))
    (missing,) = api.get(f"/v1/rollouts/{corrupt.rollout_id}").json()["missing"]
    assert "is not gzipped JSON" in missing


def test_a_trace_joins_the_spans_of_every_record_in_order(api: TestClient, rows: Rows, objects: Any) -> None:
    claim, _ = rows.produced(rows.run())
    keep(rows, objects, claim, attempt(claim, "return x"), grading(claim))
    spans = api.get(f"/v1/rollouts/{claim.rollout_id}/trace").json()["spans"]
    recorded = [s["name"] for s in spans if s["service"] != "dispatcher"]
    assert recorded == ["episode", "chat", "generate", "grade", "exec"]
    (grant,) = [s for s in spans if s["service"] == "dispatcher"]
    assert grant["trace_id"] == claim.traceparent.split("-")[1]


def test_rollouts_are_listed_by_run_state_and_task(api: TestClient, rows: Rows) -> None:
    seeded = rows.run()
    produced = {c.rollout_id for c in rows.produced(seeded)}
    queued = set(rows.group(seeded, 3))

    def ids(**query: str) -> set[str]:
        return {r["id"] for r in api.get("/v1/rollouts", params=query).json()["items"]}

    assert ids(run="r") == ids(run=seeded.run_id) == ids(task="add/1") == produced | queued
    assert ids(run="r", state="QUEUED") == queued
    assert ids(task="other") == set()
    assert api.get("/v1/rollouts", params={"run": "none"}).status_code == 404
    assert api.get("/v1/rollouts", params={"state": "LOST"}).status_code == 422


def test_an_unknown_rollout_is_a_404(api: TestClient) -> None:
    for path in ("/v1/rollouts/none", "/v1/rollouts/none/trace"):
        answer = api.get(path)
        assert answer.status_code == 404
        assert answer.json()["detail"].startswith("there is no rollout 'none'")


def test_the_fleet_shows_what_each_runner_has_aboard(api: TestClient, rows: Rows) -> None:
    rows.aboard(rows.run(), 3, incarnation="one")
    (runner,) = api.get("/v1/fleet").json()["items"]
    assert (runner["incarnation"], runner["aboard"], runner["slots"]) == ("one", 3, 1_000)
    assert (runner["alive"], runner["draining"]) == (True, False)
