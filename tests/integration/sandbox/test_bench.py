"""The bench runs whole, and what it prints is what a program can read."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tiltyard.sandbox.bench.peers.peer import Ground
from tiltyard.sandbox.bench.peers.runc import runc
from tiltyard.sandbox.native.image import host_image

pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(os.geteuid() != 0, reason="making boxes needs root")]

FIGURES = ("create_ms", "acquire_ms", "cycle_ms", "exec_ms", "reset_ms", "fork_ms")
PEERS = ("fork", "bwrap", "runc", "docker")


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "services.cli", "sandbox", "bench", "--json"),
            *("--quick", "--peers", "--live", "2", "--live", "4"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "measuring peers: bwrap" in done.stderr
    return json.loads(done.stdout)


def test_every_figure_is_there_and_was_measured(printed: dict[str, Any]) -> None:
    native = printed["native"]
    assert all(0 < native[name]["p50"] <= native[name]["p99"] for name in FIGURES)
    assert native["oneshot_python_per_s"] > 0
    assert native["forkbomb_kill_ms"] > 0
    for live in (printed["live"]["2"], printed["live"]["4"]):
        assert live["cycles_per_s"] > 0
        assert live["create_ms"]["p50"] > 0
        assert isinstance(live["mib_each"], float)


def test_a_peer_is_measured_or_says_why_not_and_what_to_do(printed: dict[str, Any]) -> None:
    assert tuple(printed["peers"]) == PEERS
    assert printed["peers"]["fork"]["run_ms"]["p50"] > 0
    for found in (*printed["peers"].values(), printed["docker"]):
        if "absent" in found:
            assert len(found["absent"].split()) > 4
        else:
            assert min(part["p50"] for part in found.values() if isinstance(part, dict)) > 0


def test_ratios_are_told_for_the_peers_that_were_measured(printed: dict[str, Any]) -> None:
    measured = {name for name, found in printed["peers"].items() if "absent" not in found}
    assert set(printed["ratios"]) == measured | {"live"}
    assert all(ratio > 0 for ratios in printed["ratios"].values() for ratio in ratios.values())


@pytest.mark.skipif(shutil.which("runc") is None, reason="no runc")
def test_a_peer_is_asked_by_many_threads_at_once(tmp_path: Path) -> None:
    start = Barrier(16)

    def ask(_: int) -> tuple[str, ...]:
        start.wait()
        return tuple(peer.run(["true"])[:-1])  # the last is the name of the run

    with runc(Ground(host_image(), tmp_path, None)) as peer, ThreadPoolExecutor(16) as threads:
        assert len(set(threads.map(ask, range(16)))) == 1
