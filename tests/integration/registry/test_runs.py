"""Runs over HTTP."""

import asyncio
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from services.registry.ledger import FRESH, Recent
from tests.integration.registry.conftest import Announced
from tests.integration.registry.documents import activate, evaluation, submission, training
from tiltyard.contracts.records import StepManifest, TrainedGroup, TrainedRollout, pack, step_key
from tiltyard.store import policies
from tiltyard.store.database import AsyncUnitOfWork, UnitOfWork
from tiltyard.testing.rows import Rows


@pytest.fixture
def taskset(api: TestClient, work: UnitOfWork) -> None:
    """`mine`, with one ACTIVE task."""
    api.post("/v1/tasks", json=submission())
    activate(work)


def publish(work: UnitOfWork, run_id: str, version: int) -> None:
    with work() as session:
        policies.publish(
            session,
            run_id,
            version,
            step=None,
            prefix=f"runs/{run_id}/policies/{version}/",
            files={},
            checkpoint=True,
        )


@pytest.mark.usefixtures("taskset")
def test_a_run_is_made_pending_and_announced(api: TestClient, announced: Announced) -> None:
    announced.topics.clear()
    answer = api.post("/v1/runs", json=training("a/b"))
    assert answer.status_code == 201
    made = answer.json()
    assert (made["state"], made["kind"], made["config"]["policy"]["layers"]) == ("PENDING", "train", 2)
    assert set(announced.topics) == {"dispatch", "train"}
    assert api.get(f"/v1/runs/{made['id']}").json() == api.get("/v1/runs/a/b").json() == made


@pytest.mark.usefixtures("taskset")
def test_a_policy_reference_is_pinned_to_its_newest_published_version(
    api: TestClient, work: UnitOfWork
) -> None:
    start = api.post("/v1/runs", json=training("start")).json()
    refused = api.post("/v1/runs", json=evaluation())
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("there is no published policy 'start@latest'")
    publish(work, start["id"], 0)
    publish(work, start["id"], 3)
    made = api.post("/v1/runs", json=evaluation()).json()
    assert made["policy_version"] == 3
    publish(work, start["id"], 4)
    assert api.get(f"/v1/runs/{made['id']}").json()["policy_version"] == 3
    assert api.post("/v1/runs", json=evaluation("other", policy="start@2")).status_code == 422


def test_a_run_over_an_unknown_taskset_is_refused(api: TestClient) -> None:
    answer = api.post("/v1/runs", json=training())
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "there is no taskset 'mine'; `tiltyard task list` shows the tasksets there are"
    )


def test_a_run_over_a_taskset_without_active_tasks_is_refused(api: TestClient) -> None:
    api.post("/v1/tasks", json=submission())
    answer = api.post("/v1/runs", json=training())
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "taskset 'mine' has no ACTIVE task among its 1; wait for their admission or mend them"
    )
    assert api.get("/v1/runs").json()["items"] == []


@pytest.mark.usefixtures("taskset")
def test_a_name_that_is_taken_is_a_conflict(api: TestClient) -> None:
    api.post("/v1/runs", json=training())
    answer = api.post("/v1/runs", json=training())
    assert answer.status_code == 409
    assert answer.json()["detail"] == "a run named 'train' exists; choose another name"


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        (training(optimiser={}), "optimiser", "unknown key 'optimiser'; did you mean 'optimizer'?"),
        (
            training(optimizer={"learning_rte": 1}),
            "optimizer.learning_rte",
            "unknown key 'learning_rte'; did you mean 'learning_rate'?",
        ),
        (
            {"kind": "trian"},
            "kind",
            "must be one of sft, train, evaluation, not 'trian'; did you mean 'train'?",
        ),
        ({}, "kind", "must be one of sft, train, evaluation, not None"),
        (evaluation(policy="start"), "policy", "String should match pattern"),
    ],
)
def test_a_config_fault_is_named_with_the_near_key(
    api: TestClient, config: dict[str, Any], path: str, message: str
) -> None:
    answer = api.post("/v1/runs", json=config)
    assert answer.status_code == 422
    found = {f["path"]: f["message"] for f in answer.json()["faults"]}
    assert found[path].startswith(message)


def test_a_warm_start_needs_its_dataset_stored(api: TestClient) -> None:
    digest = api.put("/v1/artifacts", content=b'{"prompt": "a", "completion": "b"}').json()["digest"]
    config = {"kind": "sft", "name": "warm", "dataset": "sha256:" + "0" * 64}
    answer = api.post("/v1/runs", json=config)
    assert answer.status_code == 422
    assert "is not stored; upload it first with PUT /v1/artifacts" in answer.json()["detail"]
    assert api.post("/v1/runs", json={**config, "dataset": digest}).status_code == 201


@pytest.mark.usefixtures("taskset")
def test_cancel_ends_the_run_and_what_it_had_in_flight(api: TestClient, rows: Rows) -> None:
    seeded = rows.run()
    waiting = rows.group(seeded)
    answer = api.post(f"/v1/runs/{seeded.run_id}/cancel")
    assert answer.json()["state"] == "CANCELLED"
    assert rows.states(seeded) == ["CANCELLED"] * len(waiting)
    assert api.post(f"/v1/runs/{seeded.run_id}/cancel").json()["state"] == "CANCELLED"
    assert api.post("/v1/runs/none/cancel").status_code == 404


def test_stats_count_rows_and_leave_invalid_rollouts_out_of_the_mean(
    api: TestClient, rows: Rows, work: UnitOfWork
) -> None:
    seeded = rows.run()
    ids = rows.group(seeded, 4)
    with work() as session:
        for rollout_id, state, reward in zip(
            ids, ("TRAINED", "TRAINED", "INVALID", "QUEUED"), (1.0, 0.5, None, None), strict=True
        ):
            session.execute(
                text("UPDATE rollouts SET state = :s, reward = :r WHERE id = :i"),
                {"s": state, "r": reward, "i": rollout_id},
            )
        session.execute(
            text(
                "INSERT INTO attempts (rollout_id, fence, incarnation, traceparent, ended_at, outcome)"
                " VALUES (:i, 1, 'x', '', now(), 'sandbox_failed'), (:i, 2, 'x', '', now(), 'token_limit')"
            ),
            {"i": ids[2]},
        )
    stats = api.get(f"/v1/runs/{seeded.run_id}/stats").json()
    assert stats["rollouts"] == {"INVALID": 1, "QUEUED": 1, "TRAINED": 2}
    assert stats["mean_reward"] == 0.75
    assert stats["valid_share"] == pytest.approx(2 / 3)
    assert stats["rewards"] == {"0.5": 1, "1.0": 1}
    assert stats["failures"] == {"sandbox_failed": 1}


def test_an_evaluation_reports_each_task_and_an_interval(
    api: TestClient, rows: Rows, work: UnitOfWork
) -> None:
    seeded = rows.run()
    ids = rows.group(seeded, 4)
    refused = api.get(f"/v1/runs/{seeded.run_id}/evaluation")
    assert refused.status_code == 422
    assert "only evaluation runs have this" in refused.json()["detail"]
    publish(work, seeded.run_id, 2)
    made = api.post("/v1/runs", json=evaluation(taskset="set", policy="r@2")).json()
    with work() as session:
        session.execute(text("UPDATE groups SET run_id = :run"), {"run": made["id"]})
        session.execute(text("UPDATE rollouts SET run_id = :run"), {"run": made["id"]})
        for rollout_id, reward in zip(ids, (1.0, 0.0, 1.0, None), strict=True):
            session.execute(
                text("UPDATE rollouts SET reward = :r WHERE id = :i"), {"r": reward, "i": rollout_id}
            )
    view = api.get(f"/v1/runs/{made['id']}/evaluation").json()
    assert view["policy"] == f"{seeded.run_id}@2"
    assert (view["tasks"], view["rollouts"], view["valid"]) == (1, 4, 3)
    assert view["mean"] == view["low"] == view["high"] == pytest.approx(2 / 3)
    (score,) = view["scores"]
    assert (score["name"], score["valid"], score["passed"]) == ("add/1", 3, 2)


def test_latency_is_read_from_the_transitions(api: TestClient, rows: Rows) -> None:
    seeded = rows.run()
    rows.produced(seeded, 3)
    empty = api.get(f"/v1/runs/{seeded.run_id}/latency").json()
    assert (empty["ended"], empty["grant_to_scored_ms"]) == (0, {})
    assert 0 < empty["queued_to_claimed_ms"]["p50"] <= empty["queued_to_claimed_ms"]["p99"]
    with rows.work() as session:
        for end, seconds in (("SCORED", 2), ("TRAINED", 4)):
            session.execute(
                text(
                    'INSERT INTO transitions (rollout_id, seq, "end", fence, actor, at)'
                    " SELECT t.rollout_id, t.seq + 2 + :s, :end, t.fence, 'x',"
                    " t.at + make_interval(secs => :s)"
                    """ FROM transitions t WHERE t."end" = 'GRANTED'"""
                ),
                {"end": end, "s": seconds},
            )
    view = api.get(f"/v1/runs/{seeded.run_id}/latency").json()
    assert view["ended"] == 3
    assert view["grant_to_scored_ms"] == {"p50": pytest.approx(2_000), "p99": pytest.approx(2_000)}
    assert 0.5 < view["ended_per_second"] < 0.75


def test_the_ledger_balances_and_names_a_row_that_disagrees(
    api: TestClient, rows: Rows, work: UnitOfWork
) -> None:
    seeded = rows.run()
    ids = rows.group(seeded)
    with work() as session:
        session.execute(text("UPDATE runs SET groups_planned = 1"))
    view = api.get(f"/v1/runs/{seeded.run_id}/ledger").json()
    assert (view["balanced"], view["created"], view["planned_groups"]) == (True, 2, 1)
    with work() as session:
        session.execute(text("DELETE FROM transitions WHERE rollout_id = :id"), {"id": ids[0]})
    view = api.get(f"/v1/runs/{seeded.run_id}/ledger").json()
    assert view["balanced"] is False
    assert [d["row"] for d in view["discrepancies"]] == [f"rollout {ids[0]}"]


def test_the_ledger_reads_each_steps_manifest(
    api: TestClient, rows: Rows, work: UnitOfWork, objects: Any
) -> None:
    seeded = rows.run()
    key = step_key(seeded.run_id, 1, 1)
    with work() as session:
        session.execute(
            text(
                "INSERT INTO training_steps (run_id, step, state, fence, manifest)"
                " VALUES (:run, 1, 'COMMITTED', 1, :key)"
            ),
            {"run": seeded.run_id, "key": key},
        )
    lost = api.get(f"/v1/runs/{seeded.run_id}/ledger").json()["discrepancies"]
    assert [(d["row"], key in d["detail"]) for d in lost] == [("step 1", True)]
    stranger = TrainedRollout(rollout_id="x", fence=1, reward=1.0, advantage=0.5)
    manifest = StepManifest(
        run_id=seeded.run_id,
        step=1,
        version=1,
        groups=(TrainedGroup(group_id="g", rollouts=(stranger,)),),
        metrics={},
    )
    objects.put(key, pack(manifest))
    (odd,) = api.get(f"/v1/runs/{seeded.run_id}/ledger").json()["discrepancies"]
    assert odd["detail"] == "differs in rollouts ['x']"


@pytest.mark.usefixtures("taskset")
def test_steps_and_policies_are_paged_in_order(api: TestClient, work: UnitOfWork) -> None:
    run_id = api.post("/v1/runs", json=training()).json()["id"]
    with work() as session:
        session.execute(
            text(
                "INSERT INTO training_steps (run_id, step, state, fence, metrics)"
                """ SELECT :run, n, 'COMMITTED', 1, '{"reward": 0.5}' FROM generate_series(1, 12) n"""
            ),
            {"run": run_id},
        )
    for version in range(12):
        publish(work, run_id, version)

    def listed(what: str, key: str) -> list[int]:
        first = api.get(f"/v1/runs/train/{what}", params={"limit": 8}).json()
        rest = api.get(f"/v1/runs/train/{what}", params={"limit": 8, "cursor": first["next_cursor"]}).json()
        assert rest["next_cursor"] is None
        return [row[key] for row in first["items"] + rest["items"]]

    assert listed("steps", "step") == list(range(1, 13))
    assert listed("policies", "version") == list(range(11, -1, -1))
    assert api.get("/v1/runs/train").json()["step"] == 12


def test_an_unknown_run_is_a_404_everywhere(api: TestClient) -> None:
    for tail in ("", "/steps", "/stats", "/ledger", "/evaluation", "/policies", "/objects/x"):
        answer = api.get(f"/v1/runs/none{tail}")
        assert answer.status_code == 404
        assert (
            answer.json()["detail"] == "there is no run 'none'; `tiltyard run list` shows the runs there are"
        )


def test_the_consoles_ledger_is_reconciled_anew_once_it_is_old(
    database_url: str, objects: Any, rows: Rows
) -> None:
    seeded, now = rows.run(), [100.0]

    async def look() -> list[int]:
        recent, work = Recent(clock=lambda: now[0]), AsyncUnitOfWork(database_url, connections=1)
        seen = [(await recent.check(work, objects, seeded.run_id)).created]
        await asyncio.to_thread(rows.group, seeded, 3)
        seen.append((await recent.check(work, objects, seeded.run_id)).created)
        now[0] += FRESH + 0.1
        seen.append((await recent.check(work, objects, seeded.run_id)).created)
        await work.close()
        return seen

    assert asyncio.run(look()) == [0, 0, 3]
