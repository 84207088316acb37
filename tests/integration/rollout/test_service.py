"""The service as its own process, on real checkpoints."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.rollout.conftest import Shelf
from tests.unit.rollout.checkpoints import EOS, logprobs_of, policy

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "ab" * 16, "cd" * 8


@contextmanager
def running(shelf: Shelf, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """URL and process of a service that is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TILTYARD_")},
        "TILTYARD_DATABASE_URL": shelf.database_url,
        "TILTYARD_OBJECTS_URL": shelf.objects_url,
        "TILTYARD_PORT": str(port),
        **settings,
    }
    process = subprocess.Popen([sys.executable, "-m", "services.rollout"], cwd=ROOT, env=environment)
    try:
        await_ready(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


def await_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail(f"not ready; exit status {process.poll()}")


def test_real_tokens_over_http(shelf: Shelf, checkpoint: Callable[[int], Path]) -> None:
    run = shelf.run("tiny")
    shelf.publish(run, 0, checkpoint(0))
    with running(shelf) as (url, process):
        one_by_one_equals_many_at_once(url)
        probabilities_are_the_models(url, checkpoint)
        the_span_is_the_callers_child(url)
        a_new_version_is_stated_by_those_it_made(shelf, run, url, checkpoint)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def asked(index: int) -> dict[str, object]:
    return {
        "model": "tiny@latest",
        "prompt": f"def f{index // 4}(x):\n    return",
        "max_tokens": 5 + index % 30,
        "stop": ["\n"],
        "seed": index,
        "logprobs": 0,
        "return_token_ids": True,
        "temperature": 0.8,
    }


async def post_all(url: str, bodies: list[dict[str, object]]) -> list[dict]:
    async with httpx.AsyncClient(timeout=120) as client:
        responses = await asyncio.gather(*(client.post(f"{url}/v1/completions", json=b) for b in bodies))
    assert [r.status_code for r in responses] == [200] * len(bodies), responses[0].text
    return [r.json() for r in responses]


def one_by_one_equals_many_at_once(url: str) -> None:
    together = asyncio.run(post_all(url, [asked(i) for i in range(24)]))
    for index in range(0, 24, 5):
        (alone,) = asyncio.run(post_all(url, [asked(index)]))
        assert alone["choices"][0]["token_ids"] == together[index]["choices"][0]["token_ids"]


def probabilities_are_the_models(url: str, checkpoint: Callable[[int], Path]) -> None:
    tiny = policy(checkpoint(0))
    for body in asyncio.run(post_all(url, [asked(i) for i in range(8)])):
        (choice,) = body["choices"]
        prompt, tokens = tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"])
        plain = logprobs_of(tiny, prompt, tokens, 0.8)
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain, abs=2e-4)
        assert choice["policy_versions"] == [0] * len(tokens)
        ended = tokens[-1] in (EOS, ord("\n"))
        assert choice["finish_reason"] == ("stop" if ended else "length")
        assert "\n" not in choice["text"]


def the_span_is_the_callers_child(url: str) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-tiltyard-spans": "1"}
    body = httpx.post(f"{url}/v1/completions", json=asked(0), headers=headers, timeout=60).json()
    (span,) = body["spans"]
    assert (span["trace_id"], span["parent_id"], span["service"]) == (TRACE, PARENT, "rollout")
    attributes = span["attributes"]
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.model"] == "tiny@latest"
    assert attributes["gen_ai.response.model"] == "tiny@0"
    assert attributes["gen_ai.usage.output_tokens"] == len(body["choices"][0]["token_ids"])


def a_new_version_is_stated_by_those_it_made(
    shelf: Shelf, run: str, url: str, checkpoint: Callable[[int], Path]
) -> None:
    """Requests keep coming while version 1 appears; each one's tokens are its stated version's."""
    models = {version: policy(checkpoint(version)) for version in (0, 1)}

    async def go() -> list[dict]:
        answers: list[dict] = []
        async with asyncio.timeout(120), httpx.AsyncClient(timeout=60) as client:
            shelf.publish(run, 1, checkpoint(1))
            while not answers or answers[-1]["model"] != "tiny@1":
                burst = [client.post(f"{url}/v1/completions", json=asked(i)) for i in range(6)]
                answers += [response.json() for response in await asyncio.gather(*burst)]
        return answers

    for body in asyncio.run(go()):
        (choice,) = body["choices"]
        version, tokens = choice["policy_version"], tuple(choice["token_ids"])
        assert body["model"] == f"tiny@{version}"
        plain = logprobs_of(models[version], tuple(choice["prompt_token_ids"]), tokens, 0.8)
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(plain, abs=2e-4)


def test_the_scripted_engine_needs_rows_alone(shelf: Shelf, tmp_path: Path) -> None:
    shelf.publish(shelf.run("bench"), 3)
    with running(shelf, TILTYARD_ENGINE="scripted", TILTYARD_SCRIPT_SHARE="1") as (url, process):
        body = {"model": "bench@latest", "prompt": "answer: 7\n"}
        answer = httpx.post(f"{url}/v1/completions", json=body).json()
        assert (answer["model"], answer["choices"][0]["text"]) == ("bench@3", "7")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"TILTYARD_ENGIN": "scripted"}, "did you mean TILTYARD_ENGINE"),
        ({"TILTYARD_ENGINE": "vllm"}, "TILTYARD_ENGINE"),
        ({"TILTYARD_OBJECTS_URL": ""}, "TILTYARD_OBJECTS_URL is not set"),
        ({"TILTYARD_SCRIPT_FILE": "/nonexistent", "TILTYARD_ENGINE": "scripted"}, "/nonexistent"),
    ],
)
def test_wrong_settings_end_the_process_with_a_reason(
    shelf: Shelf, settings: dict[str, str], words: str
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "TILTYARD_DATABASE_URL": shelf.database_url,
        "TILTYARD_OBJECTS_URL": shelf.objects_url,
        **settings,
    }
    done = subprocess.run(
        [sys.executable, "-m", "services.rollout"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]
