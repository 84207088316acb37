"""How the client repeats and fails."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tiltyard.client import ApiError, Client, Unreachable
from tiltyard.client.transport import Transport
from tiltyard.contracts.http import TaskSubmission
from tiltyard.testing.rows import addition

OK = {"status": "ok"}
ACCEPTED = {"id": "0" * 64, "name": "a", "state": "SUBMITTED", "admission_id": "x"}
PROBLEM = {
    "title": "Unprocessable Entity",
    "status": 422,
    "detail": "task submission is not valid",
    "faults": [{"path": "spec.nme", "message": "unknown key 'nme'; did you mean 'name'?"}],
}


class Registry:
    """Answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: Callable[[httpx.Request], httpx.Response]) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self._answers[min(len(self.asked), len(self._answers)) - 1](request)


def answering(status: int, body: object, **headers: str) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, json=body, headers=headers)


def breaking(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("connection reset", request=request)


def refusing(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("[Errno 111] Connection refused", request=request)


def client(registry: Registry, *, tries: int = 3) -> Client:
    transport = Transport("http://here:1", "secret", tries=tries, transport=httpx.MockTransport(registry))
    return Client("http://here:1", "secret", transport=transport)


def test_a_request_carries_the_token() -> None:
    registry = Registry(answering(200, OK))
    client(registry).ready()
    assert registry.asked[0].headers["authorization"] == "Bearer secret"


def test_a_post_that_breaks_is_repeated_under_one_key() -> None:
    registry = Registry(breaking, answering(503, PROBLEM, **{"Retry-After": "0"}), answering(201, ACCEPTED))
    accepted = client(registry).submit_task(TaskSubmission(spec=addition()))
    assert accepted.name == "a"
    keys = {r.headers["idempotency-key"] for r in registry.asked}
    assert (len(registry.asked), len(keys)) == (3, 1)
    assert len({r.content for r in registry.asked}) == 1


def test_two_posts_have_two_keys() -> None:
    registry = Registry(answering(201, ACCEPTED))
    one = client(registry)
    one.submit_task(TaskSubmission(spec=addition()))
    one.submit_task(TaskSubmission(spec=addition()))
    assert len({r.headers["idempotency-key"] for r in registry.asked}) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413, 415, 422, 500])
def test_what_a_repetition_cannot_mend_is_not_repeated(status: int) -> None:
    registry = Registry(answering(status, {**PROBLEM, "status": status}))
    with pytest.raises(ApiError):
        client(registry).ready()
    assert len(registry.asked) == 1


def test_a_busy_registry_is_given_up_after_the_tries_with_its_problem() -> None:
    registry = Registry(answering(503, {**PROBLEM, "status": 503}, **{"Retry-After": "0"}))
    with pytest.raises(ApiError, match="503"):
        client(registry, tries=4).ready()
    assert len(registry.asked) == 4


def test_an_error_names_each_fault_with_its_path() -> None:
    with pytest.raises(ApiError) as caught:
        client(Registry(answering(422, PROBLEM))).ready()
    assert str(caught.value) == (
        "task submission is not valid (422 Unprocessable Entity)\n"
        "  spec.nme: unknown key 'nme'; did you mean 'name'?"
    )
    assert caught.value.problem.faults[0].path == "spec.nme"


def test_a_refused_connection_says_how_to_start_one() -> None:
    registry = Registry(refusing)
    with pytest.raises(Unreachable) as caught:
        client(registry, tries=2).ready()
    assert str(caught.value) == (
        "no registry answers at http://here:1 ([Errno 111] Connection refused); start one with `tiltyard up`,"
        " or name another with --url or TILTYARD_URL"
    )
    assert len(registry.asked) == 2


def test_an_answer_of_something_else_is_shown() -> None:
    def page(_: httpx.Request) -> httpx.Response:
        return httpx.Response(404, text="<html>nginx</html>")

    with pytest.raises(ApiError, match="not an answer of a Tiltyard registry: '<html>nginx"):
        client(Registry(page)).ready()


def test_a_list_is_read_page_by_page_as_it_is_iterated() -> None:
    tasksets = [{"name": str(n), "tasks": 1, "active": 1, "quarantined": 0, "submitted": 0} for n in range(3)]

    def paged(request: httpx.Request) -> httpx.Response:
        at = int(request.url.params.get("cursor", 0))
        following = str(at + 1) if at < 2 else None
        return httpx.Response(200, json={"items": [tasksets[at]], "next_cursor": following})

    registry = Registry(paged)
    found = client(registry).tasksets()
    assert next(found).name == "0"
    assert len(registry.asked) == 1
    assert [t.name for t in found] == ["1", "2"]


def test_an_upload_is_named_by_its_bytes_and_sent_as_they_are() -> None:
    registry = Registry(answering(201, {"digest": "sha256:" + "0" * 64, "size": 3}))
    client(registry).upload_artifact(b"\x00\xffa")
    assert registry.asked[0].content == b"\x00\xffa"
    assert registry.asked[0].headers["content-type"] == "application/octet-stream"


def test_an_upload_of_a_file_that_is_tried_again_begins_at_its_first_byte(tmp_path: Path) -> None:
    (file := tmp_path / "data").write_bytes(data := bytes(range(256)) * 1_000)
    stored = {"digest": "sha256:" + "0" * 64, "size": len(data)}
    registry = Registry(answering(503, {**PROBLEM, "status": 503}), answering(201, stored))
    client(registry).upload_artifact(file)
    assert [request.read() for request in registry.asked] == [data, data]


def test_names_with_slashes_and_odd_characters_reach_the_registry_whole() -> None:
    registry = Registry(answering(404, {**PROBLEM, "status": 404}))
    with pytest.raises(ApiError):
        client(registry).run("a/b c?d#e")
    assert registry.asked[0].url.raw_path == b"/v1/runs/a/b%20c%3Fd%23e"


def test_waiting_for_admissions_reports_progress_and_gives_up_in_time() -> None:
    def waiting(n: int) -> dict[str, object]:
        return {"name": "s", "tasks": 2, "active": 2 - n, "quarantined": 0, "submitted": n}

    seen: list[int] = []
    registry = Registry(answering(200, waiting(1)), answering(200, waiting(0)))
    view = client(registry).wait_admissions("s", progress=lambda v: seen.append(v.submitted))
    assert (view.active, seen) == (2, [1, 0])
    with pytest.raises(TimeoutError, match="1 tasks of 's' still wait"):
        client(Registry(answering(200, waiting(1)))).wait_admissions("s", timeout=0)


def test_a_body_is_canonical_json() -> None:
    registry = Registry(answering(201, ACCEPTED))
    client(registry).submit_task(TaskSubmission(spec=addition()))
    body = registry.asked[0].content
    assert json.loads(body)["spec"]["name"] == "add/1"
    assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
