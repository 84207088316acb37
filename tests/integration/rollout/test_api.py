"""Shapes and failures of the HTTP API, on the scripted engine."""

import asyncio
from typing import Any

import httpx
import pytest

from services.rollout.engine import Answer, Ask, Choose, EngineFailed, Overloaded
from services.rollout.gauges import Gauges
from services.rollout.scripted_engine import BEGIN, END, Script, ScriptedEngine, load
from tests.integration.rollout.conftest import InProcess, Shelf
from tiltyard.telemetry.metrics import Metrics


class Failing(ScriptedEngine):
    """Fails on prompts that name a failure."""

    async def generate(self, choose: Choose, ask: Ask) -> Answer:
        if ask.prompt == "overload":
            raise Overloaded("9 sequences wait already; try again later")
        if ask.prompt == "break":
            raise EngineFailed("generation failed; the rollout service's log has the reason")
        if ask.prompt == "bug":
            raise ZeroDivisionError("secret detail")
        return await super().generate(choose, ask)


def service(shelf: Shelf, latency: float = 0.0) -> InProcess:
    gauges = Gauges(Metrics())
    engine = Failing(Script(share=1.0, answers={}), latency=latency, meter=gauges)
    return InProcess(shelf.database_url, engine, load, gauges=gauges)


def call(shelf: Shelf, method: str, path: str, **options: Any) -> httpx.Response:
    async def go() -> httpx.Response:
        async with service(shelf) as running:
            return await running.http.request(method, path, **options)

    return asyncio.run(go())


def completion(shelf: Shelf, **body: Any) -> httpx.Response:
    return call(shelf, "POST", "/v1/completions", json={"model": "r@latest", "prompt": "answer: é\n", **body})


@pytest.fixture
def published(shelf: Shelf) -> Shelf:
    run = shelf.run("r")
    shelf.publish(run, 2)
    shelf.publish(run, 6)
    return shelf


def test_a_completion_has_openais_shape_and_our_tokens(published: Shelf) -> None:
    response = completion(published, logprobs=0, return_token_ids=True)
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "r@6")
    assert isinstance(body["created"], int)
    assert body["usage"] == {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    assert body["choices"] == [
        {
            "index": 0,
            "text": "é",
            "finish_reason": "stop",
            "logprobs": {
                "tokens": ["bytes:\\xc3", "bytes:\\xa9", ""],
                "token_logprobs": [-0.5] * 3,
                "text_offset": [0, 0, 1],
                "top_logprobs": None,
            },
            "policy_version": 6,
            "policy_versions": [6, 6, 6],
            "token_ids": [0xC3, 0xA9, END],
            "prompt_token_ids": [BEGIN, *"answer: é\n".encode()],
        }
    ]


def test_what_was_not_asked_for_is_absent(published: Shelf) -> None:
    choice = completion(published).json()["choices"][0]
    assert choice["logprobs"] is None
    assert "token_ids" not in choice


def test_several_choices_are_numbered(published: Shelf) -> None:
    body = completion(published, n=3).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 9


def test_token_ids_go_in_as_they_came_out(published: Shelf) -> None:
    ids = [BEGIN, *b"answer: x\n"]
    choice = completion(published, prompt=ids, return_token_ids=True).json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["text"]) == (ids, "x")


def test_the_span_continues_the_callers_trace_and_comes_along_when_asked_for(published: Shelf) -> None:
    """Without an SDK in this process nothing is recorded: see test_service for the spans themselves."""
    headers = {"x-tiltyard-spans": "1", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    body = {"model": "r@latest", "prompt": "p"}
    assert call(published, "POST", "/v1/completions", json=body, headers=headers).json()["spans"] == []
    assert "spans" not in call(published, "POST", "/v1/completions", json=body).json()


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "words"),
    [
        ({"model": "nope@latest"}, 404, "model_not_found", "model", "models that exist: r@latest"),
        ({"model": "r@5"}, 404, "model_not_found", "model", "the newest are 2, 6"),
        ({"model": "r"}, 404, "model_not_found", "model", "run@version"),
        ({"max_token": 5}, 400, None, "max_token", "did you mean 'max_tokens'"),
        ({"prompt": []}, 400, "invalid_prompt", "prompt", "no token"),
        ({"prompt": [999]}, 400, "invalid_prompt", "prompt", "no token with id 999"),
        ({"prompt": "x" * (1 << 20)}, 400, "context_length_exceeded", "prompt", "shorten"),
        ({"prompt": "overload"}, 429, "overloaded", None, "try again later"),
        ({"prompt": "break"}, 500, "engine_failed", None, "log has the reason"),
        ({"prompt": "bug"}, 500, "internal_error", None, "log has the reason"),
        ({"prompt": "bug", "n": 3}, 500, "internal_error", None, "log has the reason"),
    ],
)
def test_failures_are_openais_error_objects(
    published: Shelf, body: dict[str, Any], status: int, code: str | None, param: str | None, words: str
) -> None:
    response = completion(published, **body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert words in error["message"]
    assert "secret" not in response.text
    assert set(error) == {"message", "type", "param", "code"}
    assert (status != 429) or response.headers["retry-after"] == "1"


def test_a_run_without_a_version_says_when_to_ask_again(shelf: Shelf) -> None:
    shelf.run("young")
    response = completion(shelf, model="young@latest")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["code"] == "no_policy_version"


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"[]", b'"x"'])
def test_a_body_that_is_no_json_object_is_refused(shelf: Shelf, content: bytes) -> None:
    response = call(shelf, "POST", "/v1/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_huge_body_is_refused(shelf: Shelf) -> None:
    assert call(shelf, "POST", "/v1/completions", content=b" " * 16_000_001).status_code == 413


def test_an_unknown_path_is_an_error_object_too(shelf: Shelf) -> None:
    assert call(shelf, "GET", "/v1/chat").json()["error"]["message"] == "GET /v1/chat: Not Found"


def test_models_are_listed_as_openai_does(published: Shelf) -> None:
    body = call(published, "GET", "/v1/models").json()
    (model,) = body["data"]
    assert (body["object"], model["object"], model["id"]) == ("list", "model", "r@latest")
    assert model["root"].endswith("@6")


def test_tokenize_and_detokenize_have_vllms_shapes(published: Shelf) -> None:
    asked = {"model": "r@2", "prompt": "hé", "return_token_strs": True}
    tokens = call(published, "POST", "/tokenize", json=asked).json()
    assert tokens == {
        "count": 4,
        "max_model_len": 1 << 20,
        "tokens": [BEGIN, 104, 0xC3, 0xA9],
        "token_strs": ["", "h", "bytes:\\xc3", "bytes:\\xa9"],
    }
    text = call(published, "POST", "/detokenize", json={"model": "r@2", "tokens": tokens["tokens"]}).json()
    assert text == {"prompt": "hé"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_it_is_ready_without_any_version(shelf: Shelf, path: str) -> None:
    assert call(shelf, "GET", path).status_code == 200


def test_metrics_count_requests_and_tokens(published: Shelf) -> None:
    async def go() -> str:
        async with service(published) as running:
            await running.complete(model="r@latest", prompt="answer: xy\n")
            await running.complete(model="nope@1")
            return (await running.http.get("/metrics")).text

    page = asyncio.run(go())
    for line in (
        'tiltyard_generation_requests_total{status="200"} 1.0',
        'tiltyard_generation_requests_total{status="404"} 1.0',
        'tiltyard_generation_tokens_total{kind="completion"} 3.0',
        "tiltyard_generation_queue_seconds_count 1.0",
        "tiltyard_policy_versions_loaded 1.0",
    ):
        assert line in page


def test_a_database_that_is_away_is_a_503_and_loaded_versions_go_on(published: Shelf) -> None:
    async def go() -> tuple[int, httpx.Response]:
        async with service(published) as running:
            await running.complete(model="r@latest")
            running.versions._work = UnreachableWork()  # pyright: ignore[reportAttributeAccessIssue]
            return (await running.complete(model="r@latest")).status_code, await running.complete(model="x@1")

    still, unknown = asyncio.run(go())
    assert still == 200
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "database_unavailable")


class UnreachableWork:
    """A unit of work over a database that refuses."""

    async def run(self, *_: object, **__: object) -> None:
        from sqlalchemy.exc import OperationalError

        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    async def close(self) -> None:
        """Nothing is open."""


def test_a_client_that_goes_away_stops_the_work(published: Shelf) -> None:
    async def go() -> list[str]:
        ends: list[str] = []
        began = asyncio.Event()

        class Patient(ScriptedEngine):
            async def generate(self, choose: Choose, ask: Ask) -> Answer:
                began.set()
                try:
                    await asyncio.sleep(3_600)
                except asyncio.CancelledError:
                    ends.append("stopped")
                    raise
                raise AssertionError("nobody waits so long")

        engine = Patient(Script(answers={}))
        async with InProcess(published.database_url, engine, load) as running:
            app = running.http._transport.app  # pyright: ignore[reportAttributeAccessIssue]
            body = b'{"model": "r@latest", "prompt": "p"}'
            messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

            async def receive() -> dict[str, Any]:
                if len(messages) == 1:
                    await began.wait()
                return messages.pop(0)

            async def send(_: Any) -> None:
                """Nobody reads it."""

            scope = {
                "type": "http",
                "method": "POST",
                "path": "/v1/completions",
                "headers": [],
                "query_string": b"",
            }
            await asyncio.wait_for(app(scope, receive, send), 30)
        return ends

    assert asyncio.run(go()) == ["stopped"]
