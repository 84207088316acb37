"""`tiltyard sandbox run --backend e2b`: keys and places from the environment."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from services.cli.__main__ import tiltyard
from tests.integration.sandbox_remote.conftest import PROVIDERS, Abroad
from tiltyard.sandbox.capability import OF_EVERY_BOX


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Abroad]:
    """A stand-in on a loop and a thread of its own, since the command has its own loop."""
    abroad = Abroad(PROVIDERS[0], tmp_path)
    ready, over = threading.Event(), threading.Event()

    async def wait() -> None:
        ready.set()
        while not over.is_set():  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: abroad.run(wait))
    thread.start()
    assert ready.wait(30)
    try:
        yield abroad
    finally:
        over.set()
        thread.join(30)


def test_a_command_runs_there_and_nothing_is_left(served: Abroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_KEY", served.there.key)
    monkeypatch.setenv("E2B_API_URL", served.there.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", served.there.url)
    accept = [word for demand in OF_EVERY_BOX for word in ("--accept", demand)]
    argv = ["sandbox", "run", "--json", "--backend", "e2b", "--image", "base", *accept, "--", "echo", "there"]
    ran = CliRunner().invoke(tiltyard, argv)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["stdout"] == "there\n"
    assert served.alive == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "needs --image"),
        (["--image", "base"], "cannot enforce pids"),
        (["--image", "base", "--accept", "everything"], "give memory, pids"),
        (["--image", "base", *(word for each in OF_EVERY_BOX for word in ("--accept", each))], "E2B_API_KEY"),
    ],
)
def test_what_is_missing_is_told(options: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    ran = CliRunner().invoke(tiltyard, ["sandbox", "run", "--backend", "e2b", *options, "--", "true"])
    assert ran.exit_code == 1
    assert said in ran.output
