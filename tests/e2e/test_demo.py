"""The README's first command, with few steps: everything but learning is required."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.scenario import unused_port

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(900)]


def _demo(state: Path, *words: str) -> dict[str, object]:
    argv = [sys.executable, "-m", "services.cli", "demo", "--json", "--state", str(state)]
    told = subprocess.run(
        [*argv, "--port", str(unused_port()), *words], capture_output=True, text=True, timeout=840
    )
    assert told.returncode == 0, told.stderr[-4000:]
    return json.loads(told.stdout)


def test_the_demo_holds_on_embedded_parts(tmp_path: Path) -> None:
    told = _demo(tmp_path / "state", "--steps", "3")
    assert told["humaneval"] == {
        "tasks": 164,
        "admitted": 164,
        "oracle_passes": 164,
        "oracle_failures": 0,
        "noop_passes": 0,
        "noop_failures": 164,
    }
    assert told["ledger"]["balanced"] is True  # type: ignore[index]
    assert told["leaks"] == 0
    assert (tmp_path / "state" / "reward.png").read_bytes().startswith(b"\x89PNG")
