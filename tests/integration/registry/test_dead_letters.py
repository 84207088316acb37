"""What came to nothing over HTTP: sent back to the queue by the state table, or refused with the reason."""

import json

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from sqlalchemy import text

from services.cli.dead_letters import dlq
from tests.integration.registry.conftest import Announced
from tests.integration.registry.documents import TOKEN
from tiltyard.contracts.messages import DISPATCH
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import State
from tiltyard.store import attempts, dead_letters
from tiltyard.store.attempts import Claim, Failed
from tiltyard.testing.rows import Rows


def _failed(rows: Rows) -> tuple[Claim, Claim]:
    """A FAILED rollout, and the living other member of its group."""
    failing, other = rows.aboard(rows.run(infrastructure_retries=0))
    end = Failed(key=failing.key, outcome=Outcome.INFERENCE_FAILED, reason="no engine", jitter=0.0)
    with rows.work() as session:
        assert attempts.fail(session, end) is State.FAILED
    return failing, other


def test_a_redriven_rollout_queues_under_a_new_fence_with_its_whole_budget(
    api: TestClient, rows: Rows, announced: Announced
) -> None:
    failed, _ = _failed(rows)
    answer = api.post(f"/v1/rollouts/{failed.rollout_id}/redrive")
    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["fence"]) == ("QUEUED", failed.fence + 1)
    assert DISPATCH in announced.topics
    assert (
        rows.value("SELECT infrastructure_failures FROM rollouts WHERE id = :id", id=failed.rollout_id) == 0
    )
    last = api.get(f"/v1/rollouts/{failed.rollout_id}").json()["transitions"][-1]
    assert (last["start"], last["end"], last["actor"]) == ("FAILED", "QUEUED", "registry")


def test_a_living_rollout_is_not_redriven(api: TestClient, rows: Rows) -> None:
    _, living = _failed(rows)
    answer = api.post(f"/v1/rollouts/{living.rollout_id}/redrive")
    assert answer.status_code == 409
    assert "it is RUNNING, on its way" in answer.json()["detail"]
    assert rows.value("SELECT state FROM rollouts WHERE id = :id", id=living.rollout_id) == "RUNNING"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE groups SET state = 'FILTERED'", "its group is settled (FILTERED)"),
        ("UPDATE runs SET state = 'COMPLETED'", "its run is COMPLETED"),
        ("UPDATE rollouts SET state = 'TRAINED'", "only DEAD, EXPIRED, FAILED, INVALID can be"),
    ],
)
def test_what_is_settled_takes_no_rollout_back(api: TestClient, rows: Rows, change: str, reason: str) -> None:
    failed, _ = _failed(rows)
    with rows.work() as session:
        session.execute(text(change))
    answer = api.post(f"/v1/rollouts/{failed.rollout_id}/redrive")
    assert answer.status_code == 409
    assert reason in answer.json()["detail"]


def test_an_unknown_rollout_is_named(api: TestClient) -> None:
    answer = api.post("/v1/rollouts/nobody/redrive")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["detail"]


def test_a_refusal_keeps_no_other_rollout_from_being_redriven(server: str, rows: Rows) -> None:
    failed, living = _failed(rows)
    reach = {"TILTYARD_TOKEN": TOKEN, "TILTYARD_URL": server}
    words = ["redrive", "nobody", living.rollout_id, failed.rollout_id, failed.rollout_id]

    told = CliRunner().invoke(dlq, [*words, "--json"], env=reach, standalone_mode=False)

    assert told.return_value == 1, told.output
    answer = json.loads(told.stdout)
    assert [(r["id"], r["state"]) for r in answer["rollouts"]] == [(failed.rollout_id, "QUEUED")]
    assert [r["id"] for r in answer["refused"]] == ["nobody", living.rollout_id]
    assert "it is RUNNING, on its way" in answer["refused"][1]["reason"]
    assert living.rollout_id in told.stderr


def test_the_brokers_letters_are_shown_newest_first(api: TestClient, rows: Rows) -> None:
    with rows.work() as session:
        for body in ("older", "newer"):
            dead_letters.keep(session, queue="grade", reason="rejected", headers={"task": "x"}, body=body)
    letters = api.get("/v1/dead-letters").json()["items"]
    assert [(x["body"], x["queue"], x["headers"]) for x in letters] == [
        ("newer", "grade", {"task": "x"}),
        ("older", "grade", {"task": "x"}),
    ]
