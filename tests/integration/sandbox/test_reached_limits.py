"""What a limit that was reached is told as, beyond what the laws ask of every backend."""

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab
from tiltyard.sandbox import Box, ExecOutcome

pytestmark = pytest.mark.sandbox


def test_the_peak_of_a_memory_bomb_is_its_limit_at_most_and_the_box_survives(lab: Lab) -> None:
    async def bomb(box: Box) -> None:
        result = await box.exec(["python3", "-c", "x = bytearray(400_000_000)"])
        assert result.outcome is ExecOutcome.oom
        assert result.memory_peak_mb is not None
        assert result.memory_peak_mb <= LIMITS.memory_mb
        assert (await box.exec(["true"])).ok

    lab.with_box(bomb)


def test_a_full_disk_is_the_reason_that_the_command_itself_was_told(lab: Lab) -> None:
    result = lab.exec(["sh", "-c", "for n in 1 2; do dd if=/dev/zero of=/dev/shm/$n bs=1M count=31; done"])
    assert result.outcome is ExecOutcome.disk_limit
    assert b"No space left" in result.stderr


def test_a_file_above_the_largest_size_is_named_so(lab: Lab) -> None:
    code = "import signal, os; signal.signal(25, signal.SIG_DFL); os.truncate(os.open('f', 66), 10**9)"
    assert lab.exec(["python3", "-c", code]).outcome is ExecOutcome.disk_limit


def test_a_grandchild_that_holds_the_pipe_delays_no_end(lab: Lab) -> None:
    result = lab.exec(["sh", "-c", "(setsid sleep 100 &) ; echo done"], wall_seconds=90)
    assert (result.outcome, result.stdout) == (ExecOutcome.ok, b"done\n")
