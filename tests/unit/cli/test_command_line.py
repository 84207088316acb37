"""The command line without a registry."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from services.cli import config
from services.cli.__main__ import COMMANDS, tiltyard
from services.cli.output import plain, screen
from services.cli.rollouts import failing_step
from services.cli.status import ServiceStatus, Status, is_supervisor, read_status, write_status
from tiltyard.contracts.http import ArtifactView

HEAVY = ("rich", "pydantic", "httpx", "sqlalchemy", "fastapi", "torch", "psycopg")


def run(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **(env or {})},
    )


def test_help_loads_nothing_that_is_heavy() -> None:
    code = (
        "import sys; from services.cli.__main__ import tiltyard;"
        "tiltyard.main(['--help'], standalone_mode=False);"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_that_is_listed_exists_teaches_and_takes_json(name: str) -> None:
    command = tiltyard.get_command(click.Context(tiltyard), name)
    assert command is not None
    for leaf in leaves(command):
        assert leaf.help
        assert any("--json" in p.opts for p in leaf.params), leaf.name
        result = CliRunner().invoke(leaf, ["--help"])
        assert result.exit_code == 0
        assert f"tiltyard {name}" in result.output, f"the help of {leaf.name} shows no example"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--weight 2", "give --tenant, --pool or --image, one of them"),
        ("--tenant a --pool b --max-running 1", "give --tenant, --pool or --image, one of them"),
        ("--tenant a --headroom 1", "the limits of tenants have no --headroom"),
        ("--image a --weight 2 --max-queued 3", "the limits of images have no --max-queued, --weight"),
        ("--pool a", "nothing is given to change; the limits of pools are --max-running, --headroom"),
        ("--tenant a --weight 0", "0.0 is not in the range x>0"),
        ("--tenant a --max-running -1", "-1 is not in the range x>=0"),
        ("--tenant a --max-running many", "'many' is not a valid integer range"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_before_anything_is_asked(given: str, told: str) -> None:
    queue = tiltyard.get_command(click.Context(tiltyard), "queue")
    assert queue is not None
    reach = {"TILTYARD_TOKEN": "t" * 32, "TILTYARD_URL": "http://127.0.0.1:9"}
    result = CliRunner().invoke(queue, ["limit", *given.split()], env=reach)
    assert result.exit_code == 2
    assert told in result.output


def leaves(command: click.Command) -> list[click.Command]:
    if isinstance(command, click.Group):
        return [leaf for child in command.commands.values() for leaf in leaves(child)]
    return [command]


def test_no_option_is_given_twice_by_one_command() -> None:
    for name in COMMANDS:
        command = tiltyard.get_command(click.Context(tiltyard), name)
        assert command is not None
        for leaf in leaves(command):
            options = [o for p in leaf.params for o in p.opts]
            assert len(options) == len(set(options)), leaf.name


def test_a_wrong_command_is_usage_and_names_the_near_one() -> None:
    done = run("rollot", "list")
    assert done.returncode == 2
    assert "there is no command 'rollot'; did you mean 'rollout'?" in done.stderr


def test_without_a_stack_a_command_says_how_to_start_one(tmp_path: Path) -> None:
    done = run("task", "list", "--json", env={"TILTYARD_STATE_DIR": str(tmp_path)})
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"].startswith(f"no token: {tmp_path}/token cannot be read")
    assert "start a stack with `tiltyard up`" in done.stderr


def test_a_misspelt_variable_is_named(tmp_path: Path) -> None:
    done = run("run", "list", env={"TILTYARD_STATE_DIRR": str(tmp_path)})
    assert done.returncode == 1
    assert "TILTYARD_STATE_DIRR: unknown variable; did you mean TILTYARD_STATE_DIR?" in done.stderr


def test_status_and_down_of_a_folder_where_nothing_runs(tmp_path: Path) -> None:
    done = run("status", "--state", str(tmp_path), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "error": f"no stack runs on {tmp_path}; start one: tiltyard up --state {tmp_path}"
    }
    done = run("down", "--state", str(tmp_path), "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"stopped": False, "state": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"a": 1}\n{', "line 2"),
        ('{"name": "x"}', "instruction: required key is missing"),
    ],
)
def test_a_file_that_is_no_task_is_refused_before_anything_is_sent(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "token").write_text("t")
    file = tmp_path / "task.json"
    file.write_text(text)
    done = run("task", "submit", str(file), env={"TILTYARD_STATE_DIR": str(tmp_path)})
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_set_changes_exactly_one_key(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "a"\n[optimizer]\nlearning_rate = 1.0\nwarmup_steps = 3\n')
    sets = ("name=b", "optimizer.learning_rate=1e-4", "loss.estimator=rloo", "policy={layers=2}", "x=[1,2]")
    assert config.load(file, sets) == {
        "name": "b",
        "optimizer": {"learning_rate": 1e-4, "warmup_steps": 3},
        "loss": {"estimator": "rloo"},
        "policy": {"layers": 2},
        "x": [1, 2],
    }


@pytest.mark.parametrize("given", ["name", "=1", "a..b=1", "name.x=1"])
def test_a_set_that_means_nothing_is_a_usage_error(tmp_path: Path, given: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "a"\n')
    with pytest.raises(click.UsageError, match="--set"):
        config.load(file, (given,))


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("name = \n")
    with pytest.raises(click.ClickException, match="is not valid TOML"):
        config.load(file, ())


def span(number: int, parent: int | None, status: str = "OK", **more: Any) -> dict[str, Any]:
    return {
        "name": f"s{number}",
        "service": "x",
        "span_id": str(number),
        "parent_id": None if parent is None else str(parent),
        "start_ns": number,
        "status": status,
        "message": "why",
        **more,
    }


def test_the_failing_step_is_the_innermost_span_in_error() -> None:
    spans = (span(1, None, "ERROR"), span(2, 1, "ERROR"), span(3, 2), span(4, 1, "ERROR"))
    failed = failing_step(spans)
    assert failed is not None
    assert (failed["name"], failed["message"]) == ("s2", "why")
    assert failing_step((span(1, None), span(2, 1))) is None


def test_a_status_is_read_back_and_one_of_a_dead_supervisor_is_none(tmp_path: Path) -> None:
    status = Status(
        state="ready",
        supervisor=2**22,
        url="http://x",
        started_at=1.0,
        services={"a": ServiceStatus(pid=1, ready=True, restarts=2)},
    )
    write_status(tmp_path, status)
    assert read_status(tmp_path) is None
    assert read_status(tmp_path, even_dead=True) == status
    assert (tmp_path / "status.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "ready"}', '{"services": {"a": {}}}'])
def test_a_broken_status_is_no_status(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    assert read_status(tmp_path, even_dead=True) is None


def test_a_process_that_got_the_supervisors_number_is_not_taken_for_it(tmp_path: Path) -> None:
    assert not is_supervisor(1, tmp_path)


def test_documents_become_plain_values() -> None:
    view = ArtifactView(digest="d", size=1)
    assert plain({"a": [view], "b": (view, None)}) == {
        "a": [{"digest": "d", "size": 1}],
        "b": [{"digest": "d", "size": 1}, None],
    }


def test_lines_are_left_whole_where_no_terminal_sets_a_width(capsys: pytest.CaptureFixture[str]) -> None:
    line = "reinforcement learning: 5/50   rollouts/s 41   reward 0.60   valid 100.0%   filtered 17%   v5"
    screen(stderr=True).print(line)
    assert capsys.readouterr().err == f"{line}\n"
