"""docker-compose.yml: complete, without secrets, and with variables that our services know."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tiltyard.contracts.settings import KNOWN, PREFIX

ROOT = Path(__file__).parents[3]
OURS = {"registry", "dispatcher", "runner", "evaluator", "rollout", "trainer"}
PARTS = {"postgres", "rabbitmq", "objects"}


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_every_service_is_there_and_watched(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == OURS | PARTS | {"migrate"}
    assert all("healthcheck" in services[name] for name in OURS | PARTS)


def test_every_service_of_ours_has_a_stage_from_the_base_that_an_argument_names() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", (ROOT / "infra/Dockerfile").read_text(), re.MULTILINE)
    assert {name for _, name in stages} >= OURS
    known = {name for _, name in stages} | {"${BASE}"}
    assert all(source in known for source, _ in stages)


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    secrets = re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|TOKEN)\w*)(:-[^}]*)?\}", text)
    assert {name for name, _ in secrets} == {"POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "S3_SECRET_KEY"}
    assert {default for _, default in secrets} == {":-"}


def test_services_know_their_variables(compose: dict[str, Any]) -> None:
    given = {name for one in compose["services"].values() for name in one.get("environment", {})}
    ours = {name.removeprefix(PREFIX) for name in given if name.startswith(PREFIX)}
    assert ours
    assert ours <= set(KNOWN)


def test_ports_are_open_on_this_machine_alone(compose: dict[str, Any]) -> None:
    ports = [port for one in compose["services"].values() for port in one.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_accepts_the_file() -> None:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    command = ["docker-compose", "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_secrets_are_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    script = tmp_path / "infra/dev/secrets"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "infra/dev/secrets", script)
    subprocess.run([script], check=True, capture_output=True)
    made = (tmp_path / ".env").read_text()
    lines = dict(line.split("=") for line in made.splitlines())
    assert set(lines) == {"POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "S3_SECRET_KEY"}
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in lines.values())
    assert len(set(lines.values())) == 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / ".env", tmp_path / ".secrets/token"))
    subprocess.run([script], check=True, capture_output=True)
    assert (tmp_path / ".env").read_text() == made
