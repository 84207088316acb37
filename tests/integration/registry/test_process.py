"""The registry as a process."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.integration.registry.documents import TOKEN, submission
from tiltyard.store import idempotency
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.processes import Processes, free_port


@pytest.fixture
def registry(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs `python -m services.registry` with variables until it ends."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)

    def run(**variables: str) -> "subprocess.CompletedProcess[str]":
        given = {
            "TILTYARD_DATABASE_URL": "postgresql://postgres@127.0.0.1:1/none",
            "TILTYARD_OBJECTS_URL": f"file://{tmp_path}/objects",
            "TILTYARD_TOKEN_FILE": str(token),
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "services.registry"],
            env={**{k: v for k, v in os.environ.items() if not k.startswith("TILTYARD_")}, **given},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TILTYARD_PRT": "1"}, "TILTYARD_PRT: unknown variable; did you mean TILTYARD_PORT?"),
        ({"TILTYARD_TOKEN_FILE": ""}, "TILTYARD_TOKEN_FILE: is not set"),
        ({"TILTYARD_TOKEN_FILE": "/nowhere"}, "TILTYARD_TOKEN_FILE /nowhere cannot be read"),
        ({"TILTYARD_OBJECTS_URL": "ftp://x"}, "TILTYARD_OBJECTS_URL: String should match"),
        ({"TILTYARD_DATABASE_URL": "mysql://x"}, "TILTYARD_DATABASE_URL: String should match"),
        ({}, "connection to server"),
    ],
)
def test_it_does_not_start_and_says_why_in_one_line(
    registry: Callable[..., "subprocess.CompletedProcess[str]"], variables: dict[str, str], message: str
) -> None:
    done = registry(**variables)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("tiltyard registry: ")
    assert message in last
    assert "Traceback" not in done.stderr


def test_sigterm_ends_it_in_order(tmp_path: Path, database_url: str) -> None:
    (token := tmp_path / "token").write_text(TOKEN)
    token.chmod(0o600)
    port = free_port()
    settings = {
        "database_url": database_url,
        "objects_url": f"file://{tmp_path}/objects",
        "token_file": str(token),
        "port": str(port),
    }

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            return answer.status == 200
        return False

    with Processes(tmp_path, **settings) as processes:
        registry = processes.start("services.registry")
        processes.until(answers, "the registry answers")
        assert registry.terminate() == 0, registry.log


def test_old_idempotency_keys_are_forgotten_and_new_ones_kept(work: UnitOfWork) -> None:
    with work() as session:
        for key, age in (("old", 25), ("new", 23)):
            idempotency.begin(session, "default", key, "hash")
            session.execute(
                text("UPDATE idempotency_keys SET created_at = now() - :age WHERE key = :key"),
                {"age": timedelta(hours=age), "key": key},
            )
    with work() as session:
        assert idempotency.forget(session) == 1
        assert session.execute(text("SELECT key FROM idempotency_keys")).scalars().all() == ["new"]


def test_two_requests_with_one_key_at_once_do_the_work_once(server: str, work: UnitOfWork) -> None:
    def post(_: int) -> Any:
        request = urllib.request.Request(
            f"{server}/v1/tasks",
            json.dumps(submission()).encode(),
            {
                "Authorization": f"Bearer {TOKEN}",
                "Content-Type": "application/json",
                "Idempotency-Key": "same",
            },
        )
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read())

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(post, range(4)))
    assert answers == [answers[0]] * 4
    with work() as session:
        assert session.execute(text("SELECT count(*) FROM admissions")).scalar_one() == 1
