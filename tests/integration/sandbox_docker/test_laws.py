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

_FIRST = (
    *("a program runs", "its exit code comes back", "a signal is told", "stdin arrives", "CPU time ends it"),
    *("wall time ends it", "idleness ends it", "forks end at the limit"),
    *("the disk ends at the limit", "inodes end at the limit", "an output flood ends it"),
    *("no network but loopback", "no way to another address", "not root", "identity cannot change"),
    *("kernel settings are read-only", "the root is read-only", "PID 1 cannot be killed"),
    *("PID 1 cannot be read", "no other process is seen", "a daemon dies with its command"),
)
"""Laws that runsc was seen to be tried by; those that came later it is shown to keep or not, row by row."""


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
    _, said = _check(daemon, "--image", IMAGE)
    assert [law for law in said["laws"] if not law["holds"]] == []
    assert len(said["laws"]) == len(LAWS)


@pytest.mark.skipif(not has_runsc(), reason="runsc is not installed: apt-get install runsc")
def test_runsc_keeps_the_laws_that_native_and_runc_began_with(daemon: Dockerd) -> None:
    _, said = _check(daemon, "--image", IMAGE, "--runtime", "runsc")
    rows = {law["law"]: law for law in said["laws"]}
    assert len(rows) == len(LAWS)
    must = set(_FIRST) - {name for name in _FIRST if excuse("runsc", name)}
    assert {name: rows[name]["detail"] for name in must if not rows[name]["holds"]} == {}
    assert not rows["forks end at the limit"]["holds"], "what gVisor cannot enforce is tried too"


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
