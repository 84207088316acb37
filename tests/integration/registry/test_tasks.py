"""Tasks over HTTP."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.integration.registry.conftest import Announced
from tests.integration.registry.documents import activate, example, submission
from tiltyard.store.database import UnitOfWork


def faults(answer: Any) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return {f["path"]: f["message"] for f in answer.json()["faults"]}


def test_a_submission_stores_version_secret_membership_and_admission_and_announces_it(
    api: TestClient, work: UnitOfWork, announced: Announced
) -> None:
    answer = api.post("/v1/tasks", json=submission(repeats=1) | {"repeats": 5})
    assert answer.status_code == 422  # `repeats` is no key of a spec
    answer = api.post("/v1/tasks", json={**submission(), "repeats": 5})
    assert answer.status_code == 201
    accepted = answer.json()
    assert accepted["name"] == "examples/add"
    assert accepted["state"] == "SUBMITTED"
    assert announced.jobs == [("admit", (accepted["admission_id"],))]
    with work() as session:
        row = session.execute(
            text(
                "SELECT v.digest, v.public, s.hidden, a.repeats, a.state FROM task_versions v"
                " JOIN task_secrets s ON s.version_id = v.id JOIN admissions a ON a.version_id = v.id"
            )
        ).one()
    assert row.digest == accepted["id"]
    assert (row.repeats, row.state) == (5, "QUEUED")
    assert row.hidden["oracle"]["answer"] == example()["oracle"]["answer"]
    assert "oracle" not in row.public
    assert "verifier" not in row.public


def test_no_answer_of_the_api_holds_oracle_or_verifier(api: TestClient) -> None:
    accepted = api.post("/v1/tasks", json=submission()).json()
    for path in (f"/v1/tasks/{accepted['id']}", "/v1/tasks/examples/add", "/v1/tasks"):
        body = api.get(path).text
        assert "examples/add" in body
        assert "oracle_passes" in body
        assert "return a + b" not in body
        assert "entry_point" not in body


def test_the_same_content_is_the_same_version_and_is_admitted_once(
    api: TestClient, announced: Announced
) -> None:
    first = api.post("/v1/tasks", json=submission())
    again = api.post("/v1/tasks", json=submission())
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert len(announced.jobs) == 1


def test_other_content_under_the_same_name_is_a_new_version_and_takes_its_place_in_the_taskset(
    api: TestClient,
) -> None:
    old = api.post("/v1/tasks", json=submission()).json()
    new = api.post("/v1/tasks", json=submission(instruction="other words")).json()
    assert new["id"] != old["id"]
    assert api.get("/v1/tasks/examples/add").json()["id"] == new["id"]
    assert api.get(f"/v1/tasks/{old['id']}").json()["tasksets"] == []
    assert api.get("/v1/tasksets/mine").json() == {
        "name": "mine",
        "tasks": 1,
        "active": 0,
        "quarantined": 0,
        "submitted": 1,
    }


def test_an_admission_that_failed_by_the_platforms_fault_is_queued_again_on_resubmission(
    api: TestClient, work: UnitOfWork, announced: Announced
) -> None:
    first = api.post("/v1/tasks", json=submission()).json()
    with work() as session:
        session.execute(text("UPDATE admissions SET state = 'FAILED', report = 'no sandbox would start'"))
    again = api.post("/v1/tasks", json=submission())
    assert again.status_code == 200
    assert again.json()["admission_id"] != first["admission_id"]
    assert len(announced.jobs) == 2
    assert api.get(f"/v1/admissions/{first['admission_id']}").json()["report"] == "no sandbox would start"


def test_an_unknown_key_names_the_near_one_with_its_path(api: TestClient) -> None:
    document = submission()
    document["spec"]["limits"]["cpu_secnds"] = 3
    document["spec"]["instructions"] = "x"
    found = faults(api.post("/v1/tasks", json=document))
    assert found == {
        "spec.limits.cpu_secnds": "unknown key 'cpu_secnds'; did you mean 'cpu_seconds'?",
        "spec.instructions": "unknown key 'instructions'; did you mean 'instruction'?",
    }


def test_a_missing_key_is_named(api: TestClient) -> None:
    document = submission()
    del document["spec"]["verifier"], document["spec"]["oracle"]
    assert faults(api.post("/v1/tasks", json=document)) == {
        "spec.verifier": "required key is missing",
        "spec.oracle": "required key is missing",
    }


def test_a_name_twice_in_one_batch_is_refused_whole(api: TestClient) -> None:
    batch = {"tasks": [submission(), submission("other"), submission(instruction="y")]}
    found = faults(api.post("/v1/tasks:batch", json=batch))
    assert found == {
        "tasks.2.spec.name": "'examples/add' is the name of tasks.0 too; give each task of a batch its own"
        " name, or send a later version in a later request"
    }
    assert api.get("/v1/tasks").json()["items"] == []


def test_a_batch_answers_in_order_and_announces_all_at_once(api: TestClient, announced: Announced) -> None:
    names = ["c", "a", "b"]
    answer = api.post("/v1/tasks:batch", json={"tasks": [submission(n) for n in names]})
    assert answer.status_code == 201
    assert [t["name"] for t in answer.json()["items"]] == names
    ((kind, ids),) = announced.jobs
    assert kind == "admit"
    assert sorted(ids) == sorted(t["admission_id"] for t in answer.json()["items"])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("instruction", "a\x00b", "NUL character at offset 1; remove it"),
        ("instruction", "ok\ud800", "not valid UTF-8 at offset 2; remove the lone surrogate"),
        ("lineage", {"source": "a\x00"}, "NUL character at offset 1; remove it"),
    ],
)
def test_text_that_cannot_be_kept_is_refused_with_its_path(
    api: TestClient, place: str, value: Any, message: str
) -> None:
    document = json.dumps(submission(**{place: value}))
    answer = api.post("/v1/tasks", content=document, headers={"Content-Type": "application/json"})
    path = f"spec.{place}" + (".source" if place == "lineage" else "")
    assert faults(answer) == {path: message}


@pytest.mark.parametrize("path", ["../escape.py", "/etc/passwd", "a/../../b", "a\\b"])
def test_a_path_that_escapes_is_refused(api: TestClient, path: str) -> None:
    document = submission(environment={"files": {path: "x"}})
    (message,) = faults(api.post("/v1/tasks", json=document)).values()
    assert "must be relative, inside the work folder" in message


def test_a_hidden_case_with_nul_is_refused_instead_of_breaking_the_database(api: TestClient) -> None:
    document = submission()
    document["spec"]["verifier"]["components"][0]["cases"][0]["args"] = ["a\x00"]
    found = faults(api.post("/v1/tasks", json=document))
    assert found == {"spec.verifier.components.0.cases.0.args.0": "NUL character at offset 1; remove it"}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "the body is not valid JSON: Expecting property name"),
        (b'{"spec": NaN}', "the body is not valid JSON: NaN is no JSON number"),
        (b'{"spec": 1e999}', "the body is not valid JSON: number 1e999 is too large"),
        (b'{"spec": 1, "spec": 2}', "the body is not valid JSON: key 'spec' stands twice in one object"),
        (b'{"spec": "\xff"}', "the body is not valid UTF-8 at byte 10"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"spec": ' + b"9" * 5_000 + b"}", "the body is not valid JSON: Exceeds the limit"),
    ],
)
def test_a_body_that_is_no_json_is_a_400_that_says_why(api: TestClient, body: bytes, detail: str) -> None:
    answer = api.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(detail)


def test_another_content_type_is_a_415(api: TestClient) -> None:
    answer = api.post("/v1/tasks", content=b"name: x", headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 415
    assert answer.json()["detail"] == "the body must be application/json, not application/yaml"


def test_lists_are_paged_by_cursor_without_gap_or_double(api: TestClient) -> None:
    names = [f"t/{n:02}" for n in range(7)]
    for name in names:
        api.post("/v1/tasks", json=submission(name))
    seen, cursor = [], None
    while True:
        page = api.get("/v1/tasks", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [t["name"] for t in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == names[::-1]


@pytest.mark.parametrize("cursor", ["rubbish", "WyJydW5zIiwgIjEiXQ", "W10", "bnVsbA"])
def test_a_cursor_of_another_list_is_refused(api: TestClient, cursor: str) -> None:
    answer = api.get("/v1/tasks", params={"cursor": cursor})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "cursor is not one that this list gave; leave it out to begin anew"


def test_filters_choose_by_taskset_state_name_and_tag(api: TestClient, work: UnitOfWork) -> None:
    api.post("/v1/tasks", json=submission("alpha", tasksets=("one",)))
    activate(work)
    api.post("/v1/tasks", json=submission("beta", tasksets=("two",), tags=["lists"]))

    def names(**query: str) -> list[str]:
        return [t["name"] for t in api.get("/v1/tasks", params=query).json()["items"]]

    assert names(taskset="one") == ["alpha"]
    assert names(state="ACTIVE") == ["alpha"]
    assert names(name="ET") == ["beta"]
    assert names(tag="lists") == ["beta"]
    assert names(name="%") == []


def test_what_does_not_exist_is_a_404_that_says_what(api: TestClient) -> None:
    answer = api.get("/v1/tasks/nothing/here")
    assert answer.status_code == 404
    assert answer.json()["detail"] == (
        "there is no task 'nothing/here'; `tiltyard task list` shows the tasks there are"
    )
    assert api.get("/v1/tasksets/none").status_code == 404
    assert api.get("/v1/admissions/none").status_code == 404


def test_an_address_with_nul_is_refused(api: TestClient) -> None:
    for path in ("/v1/tasks/a%00b", "/v1/tasks?name=a%00b", "/v1/runs?cursor=%00", "/console/tasks?name=%00"):
        answer = api.get(path)
        assert answer.status_code == 400
        assert answer.json()["detail"] == "the address holds a NUL character; remove it"
