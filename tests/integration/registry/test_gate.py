"""What a request must show before anything looks at it."""

import http.client
from collections.abc import Callable, Iterator

import pytest
from fastapi.testclient import TestClient

from tests.integration.registry.documents import BODY_LIMIT, TOKEN, submission

CLOSED = ["/v1/tasks", "/v1/runs", "/v1/fleet", "/openapi.json", "/v1/nothing", "/"]


@pytest.mark.parametrize("token", [None, "wrong", TOKEN + "x", TOKEN[:-1], ""])
def test_without_the_token_nothing_is_told(make_client: Callable[..., TestClient], token: str | None) -> None:
    client = make_client(token=token)
    for path in CLOSED[:-1]:
        answer = client.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "asks for `Authorization: Bearer TOKEN`" in answer.json()["detail"]


def test_another_scheme_is_refused(make_client: Callable[..., TestClient]) -> None:
    client = make_client(token=None)
    assert client.get("/v1/tasks", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401
    assert client.get("/v1/tasks", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.", "a@localhost"])
def test_a_host_that_is_not_ours_is_refused(api: TestClient, host: str) -> None:
    answer = api.get("/v1/tasks", headers={"Host": host})
    assert answer.status_code == 421
    assert "name it in TILTYARD_ALLOWED_HOSTS" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "testserver"])
def test_loopback_and_named_hosts_are_served(api: TestClient, host: str) -> None:
    assert api.get("/v1/tasks", headers={"Host": host}).status_code == 200


def test_a_body_that_states_200_mb_is_refused_unread(server: str) -> None:
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/v1/tasks")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "200000000")
    connection.endheaders(b"{")  # and not one byte more
    answer = connection.getresponse()
    body = answer.read().decode()
    assert answer.status == 413
    assert "the body of 200,000,000 bytes is larger than the 32,000,000 bytes allowed here" in body
    connection.close()


def test_a_body_without_length_is_refused_at_the_first_byte_too_many(api: TestClient) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(20):
            sent += 100_000
            yield b" " * 100_000

    answer = api.post("/v1/tasks", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert f"larger than the {BODY_LIMIT:,} bytes" in answer.json()["detail"]


@pytest.mark.parametrize("length", ["-1", "1e9", "abc", "٣"])
def test_a_length_that_is_no_number_is_refused(server: str, length: str) -> None:
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/v1/tasks")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", length.encode())
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


def test_an_idempotent_post_is_answered_once_and_repeated_word_for_word(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = api.post("/v1/tasks", json=submission(), headers=headers)
    again = api.post("/v1/tasks", json=submission(), headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers


def test_an_idempotency_key_for_another_body_is_a_conflict(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    api.post("/v1/tasks", json=submission(), headers=headers)
    answer = api.post("/v1/tasks", json=submission("other"), headers=headers)
    assert answer.status_code == 409
    assert answer.json()["detail"] == (
        "this Idempotency-Key was used for another request; take a new key for new content"
    )


def test_a_refused_request_does_not_use_its_key_up(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    assert api.post("/v1/runs", json={"kind": "x"}, headers=headers).status_code == 422
    assert api.post("/v1/tasks", json=submission(), headers=headers).status_code == 201


def test_an_unknown_path_and_method_are_problems(api: TestClient) -> None:
    answer = api.get("/v1/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "there is no GET /v1/nothing; GET /openapi.json lists what there is"
    assert api.delete("/v1/tasks").status_code == 405


def test_a_wrong_parameter_is_named(api: TestClient) -> None:
    answer = api.get("/v1/tasks", params={"limit": 0, "state": "active"})
    assert answer.status_code == 422
    assert {f["path"] for f in answer.json()["faults"]} == {"query.limit", "query.state"}
