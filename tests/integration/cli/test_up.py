"""`tiltyard up` to `tiltyard down`, with every service's real process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.registry.documents import EXAMPLES
from tiltyard.client.sandboxes import SandboxClient
from tiltyard.testing.processes import free_port

pytestmark = pytest.mark.sandbox
SERVICES = ("postgres", "registry", "dispatcher", "rollout", "trainer", "evaluator", "runner")


class CommandLine:
    """The `tiltyard` command over one state directory."""

    def __init__(self, state: Path) -> None:
        self.state, self.lend_port = state, free_port()

    def __call__(self, *words: str, fails: int = 0) -> Any:
        """Run a command with `--json`; its document."""
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *words, "--json"],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env={**os.environ, "TILTYARD_STATE_DIR": str(self.state)},
        )
        assert done.returncode == fails, done.stderr
        return json.loads(done.stdout)

    def pid(self, service: str) -> int | None:
        return self("status")["services"][service]["pid"]

    def leftovers(self) -> list[str]:
        """Command lines of processes that carry the state directory's mark."""
        mark = b"TILTYARD_STATE_DIR=" + os.fsencode(self.state)
        found: list[str] = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


@pytest.fixture(scope="module")
def cli() -> Iterator[CommandLine]:
    """A stack that is up, with the scripted engine.

    Not below pytest's own folder: each session of pytest closes that one to the database's user."""
    with tempfile.TemporaryDirectory(prefix="tiltyard-up-") as folder:
        yield from _up(Path(folder) / "state")


def _up(state: Path) -> Iterator[CommandLine]:
    tiltyard = CommandLine(state)
    lending = ("--sandboxes", "2", "--lend-port", str(tiltyard.lend_port))
    shown = tiltyard("up", "--port", "0", "--engine", "scripted", "--slots", "16", *lending)
    assert shown["status"] == "ready"
    assert tuple(shown["services"]) == SERVICES
    assert all(s["pid"] for s in shown["services"].values())
    yield tiltyard
    tiltyard("down")
    assert tiltyard.leftovers() == []


def until(true: Callable[[], bool]) -> None:
    """Wait for something that must become true."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_the_token_and_the_status_are_for_their_owner_alone(cli: CommandLine) -> None:
    for name in ("token", "status.json"):
        assert (cli.state / name).stat().st_mode & 0o777 == 0o600


def test_the_runner_lends_sandboxes_to_whoever_has_the_token(cli: CommandLine) -> None:
    token = (cli.state / "token").read_text().strip()
    with SandboxClient(f"http://127.0.0.1:{cli.lend_port}", token) as runner, runner.borrow() as box:
        assert box.exec(["python3", "-c", "print(6 * 7)"]).stdout == "42\n"


def test_a_second_up_says_that_one_runs_and_what_to_do(cli: CommandLine) -> None:
    error = cli("up", fails=1)["error"]
    assert error.startswith(f"a stack runs on {cli.state} already, at http://127.0.0.1:")
    assert f"`tiltyard down --state {cli.state}` stops it" in error


def test_a_port_in_use_is_refused_and_nothing_is_left(cli: CommandLine, tmp_path: Path) -> None:
    port = cli("status")["url"].rpartition(":")[2]
    other = CommandLine(tmp_path / "other")
    error = other("up", "--port", port, fails=1)["error"]
    assert error == (
        f"port {port} on 127.0.0.1 is in use; stop what listens there, or choose another with --port"
    )
    assert other.leftovers() == []


def test_a_state_directory_of_another_version_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_text("tiltyard state 0\n")
    error = CommandLine(tmp_path)("up", "--port", "0", fails=1)["error"]
    assert error.startswith(f"{tmp_path} was written by another version ('tiltyard state 0'")
    assert "choose another directory with --state, or remove it" in error


@pytest.mark.parametrize("service", ["registry", "dispatcher", "runner", "evaluator", "postgres"])
def test_a_killed_service_comes_back(cli: CommandLine, service: str) -> None:
    before = cli.pid(service)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    until(lambda: cli.pid(service) not in (None, before))
    until(lambda: _answers(cli))


def _answers(cli: CommandLine) -> bool:
    try:
        return "runners" in cli("fleet", "show")
    except AssertionError:
        return False


def test_tasks_are_submitted_admitted_listed_and_shown(cli: CommandLine) -> None:
    files = [str(EXAMPLES / f"{name}.json") for name in ("task-add", "task-median")]
    admitted = cli("task", "submit", *files, "--taskset", "mine", "--wait")["tasks"]
    assert [(t["name"], t["state"]) for t in admitted] == [
        ("examples/add", "ACTIVE"),
        ("examples/median", "ACTIVE"),
    ]
    listed = cli("task", "list", "--taskset", "mine", "--state", "ACTIVE")
    assert {t["name"] for t in listed["tasks"]} == {"examples/add", "examples/median"}
    shown = cli("task", "show", "examples/add")
    assert (shown["admission"]["oracle_passes"], shown["admission"]["noop_failures"]) == (3, 3)


def test_a_task_whose_oracle_fails_is_quarantined_with_a_report(cli: CommandLine, tmp_path: Path) -> None:
    spec = json.loads((EXAMPLES / "task-add.json").read_text())
    spec |= {"name": "broken/add", "oracle": {"answer": "    return a - b"}}
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(spec))
    (task,) = cli("task", "submit", str(file), "--wait", fails=1)["tasks"]
    assert task["state"] == "QUARANTINED"
    assert task["admission"]["oracle_failures"] > 0
    assert "oracle" in task["admission"]["report"]


def test_a_run_is_started_watched_traced_and_reconciled(cli: CommandLine) -> None:
    cli("task", "submit", str(EXAMPLES / "task-add.json"), "--taskset", "mine", "--wait")
    sets = ("name=walk", "taskset=mine", "policy={hidden_size=32,layers=1,heads=2}", "groups_per_step=1")
    started = cli("run", "start", str(EXAMPLES / "run-train.toml"), *(w for s in sets for w in ("--set", s)))
    until(lambda: bool(cli("rollout", "list", "--run", "walk", "--state", "filtered")["rollouts"]))
    rollout = cli("rollout", "list", "--run", "walk", "--state", "filtered")["rollouts"][0]
    names = {s["name"] for s in cli("rollout", "trace", rollout["id"])["spans"]}
    assert {"episode", "chat", "grade"} <= names
    assert cli("rollout", "show", rollout["id"])["attempts"][0]["outcome"] == "completed"
    assert cli("run", "cancel", "walk")["state"] == "CANCELLED"
    ledger = cli("run", "ledger", started["id"])
    assert (ledger["balanced"], ledger["discrepancies"]) == (True, [])
    assert cli("run", "show", "walk")["run"]["id"] == started["id"]
    assert [r["name"] for r in cli("run", "list")["runs"]] == ["walk"]


def test_a_misspelt_config_key_and_an_empty_taskset_are_exact_errors(cli: CommandLine) -> None:
    file = str(EXAMPLES / "run-train.toml")
    error = cli("run", "start", file, "--set", "grups_per_step=1", fails=1)["error"]
    assert "grups_per_step: unknown key 'grups_per_step'; did you mean 'groups_per_step'?" in error
    error = cli("run", "start", file, "--set", "policy={}", "--set", "taskset=nobody", fails=1)["error"]
    assert error.startswith("there is no taskset 'nobody'")
