"""Every law of the one conformance suite, tried by the command that an operator runs."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.sandbox_docker.dockerd import IMAGE, Dockerd, has_runsc
from tiltyard.sandbox.conformance import LAWS
from tiltyard.sandbox.docker.runtime import excuse


def _check(daemon: Dockerd, *options: str) -> tuple[int, dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli", "sandbox", "check", "--backend", "docker", "--json", *options],
        env={**os.environ, "DOCKER_HOST": daemon.url},
        stdout=subprocess.PIPE,
        check=False,
        timeout=280,
    )
    return ran.returncode, json.loads(ran.stdout)


def test_runc_keeps_every_law(daemon: Dockerd) -> None:
    status, said = _check(daemon, "--image", IMAGE)
    assert [law for law in said["laws"] if not law["holds"]] == []
    assert len(said["laws"]) >= len(LAWS)
    assert status == 0


@pytest.mark.skipif(not has_runsc(), reason="runsc is not installed: apt-get install runsc")
def test_runsc_keeps_every_law_that_it_does_not_refuse(daemon: Dockerd) -> None:
    status, said = _check(daemon, "--image", IMAGE, "--runtime", "runsc")
    broken = {law["law"] for law in said["laws"] if not law["holds"]}
    assert {law for law in broken if not excuse("runsc", law)} == set()
    assert broken, "what gVisor cannot enforce is tried too"
    assert status == 0


def test_a_check_without_a_daemon_says_what_to_do() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli", "sandbox", "check", "--backend", "docker", "--image", "x"],
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "systemctl start docker" in ran.stderr
    assert "Traceback" not in ran.stderr
