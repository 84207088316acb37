"""Every law of the one conformance suite, tried by the command that an operator runs."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.sandbox_docker.dockerd import IMAGE, Dockerd, has_runsc
from tiltyard.sandbox.abuse import ATTACKS
from tiltyard.sandbox.conformance import LAWS
from tiltyard.sandbox.docker.runtime import excuse

_LAWS_RUNSC_CANNOT_KEEP = {
    "forks end at the limit",
    "inodes end at the limit",
    "a command on a terminal finds one",
    "what is paused stands still, and goes on",
}
_NOT_ATTACKABLE = {"the owner killed in the middle", "a compile bomb"}
"""Its owner is the check itself; the image has no compiler."""
_RUNC_CANNOT_DEFEND = {"arguments and files that are too large"}
_RUNSC_CANNOT_DEFEND = {
    *_RUNC_CANNOT_DEFEND,
    "memory of every kind",
    "every inode",
    "killing the supervisor by memory",
}
_RUNSC_MAY_YIELD = {
    "fork bomb that ignores SIGTERM and leaves its session",
    "more processes than allowed",
    "what /proc tells of the host",
}
"""Whether processes fill the memory depends on how fast the machine is; what gVisor makes up in /proc, on
its version."""


def _check(daemon: Dockerd, *options: str) -> tuple[int, dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli", "sandbox", "check", "--backend", "docker", "--json", *options],
        env={**os.environ, "DOCKER_HOST": daemon.url},
        stdout=subprocess.PIPE,
        check=False,
        timeout=280,
    )
    return ran.returncode, json.loads(ran.stdout)


def _rows(said: dict[str, Any], verdict: str) -> dict[str, str]:
    return {row["attack"]: row["detail"] for row in said["attacks"] if row["verdict"] == verdict}


def test_runc_keeps_every_law_and_yields_to_nothing_unsaid(daemon: Dockerd) -> None:
    code, said = _check(daemon, "--image", IMAGE)
    assert [law for law in said["laws"] if not law["holds"]] == []
    assert len(said["laws"]) == len(LAWS)
    assert _rows(said, "broken") == {}
    assert set(_rows(said, "cannot_defend")) == _RUNC_CANNOT_DEFEND
    assert set(_rows(said, "not_attackable")) == _NOT_ATTACKABLE
    assert len(said["attacks"]) == len(ATTACKS)
    assert code == 0


@pytest.mark.skipif(not has_runsc(), reason="runsc is not installed: apt-get install runsc")
def test_runsc_keeps_and_defends_all_but_what_it_names(daemon: Dockerd) -> None:
    code, said = _check(daemon, "--image", IMAGE, "--runtime", "runsc")
    assert len(said["laws"]) == len(LAWS)
    broken = {law["law"]: law["detail"] for law in said["laws"] if not law["holds"] and not law["excuse"]}
    assert broken == {}
    assert {law["law"] for law in said["laws"] if not law["holds"]} == _LAWS_RUNSC_CANNOT_KEEP
    assert _rows(said, "broken") == {}
    assert set(_rows(said, "cannot_defend")) - _RUNSC_MAY_YIELD == _RUNSC_CANNOT_DEFEND
    assert "typing into the terminal that it was given" in _rows(said, "not_attackable")
    assert len(said["attacks"]) == len(ATTACKS)
    assert code == 0


def test_an_excuse_is_for_what_was_expected_and_nothing_else() -> None:
    assert excuse("runsc", "every inode", "ok: nothing refused")
    assert not excuse("runsc", "every inode", "the engine failed: box 1 is gone")
    assert not excuse("runc", "every inode", "ok: nothing refused")
    assert not excuse("runsc", "not root", "ok: False")


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
