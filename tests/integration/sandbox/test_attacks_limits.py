"""Attacks on the limits: each ends typed, and nothing is left."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import errno

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab, alive, listing, said
from tiltyard.sandbox import Box, ExecOutcome

pytestmark = pytest.mark.sandbox


def test_a_fork_bomb_ends_at_the_limit_and_nothing_is_left(lab: Lab) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if not os.fork(): os.setsid()
    except OSError: pass
"""
    result = lab.python(code, cpu_seconds=0.5, wall_seconds=20)
    assert result.outcome is ExecOutcome.timeout_cpu
    assert alive(lab.last_uid) == []


def test_a_refused_fork_is_named_as_the_reason(lab: Lab) -> None:
    result = lab.python("import os\nfor _ in range(100):\n  if not os.fork(): __import__('time').sleep(9)")
    assert result.outcome is ExecOutcome.pids


def test_a_memory_bomb_is_oom_and_the_box_survives(lab: Lab) -> None:
    async def bomb(box: Box) -> None:
        result = await box.exec(["python3", "-c", "x = bytearray(400_000_000)"])
        assert result.outcome is ExecOutcome.oom
        assert result.memory_peak_mb is not None
        assert result.memory_peak_mb <= LIMITS.memory_mb
        assert (await box.exec(["true"])).ok

    lab.with_box(bomb)


@pytest.mark.parametrize(
    "allocate",
    ["import mmap; m = mmap.mmap(-1, 300_000_000); m.write(b'x' * 300_000_000)",
     "import os; fs = [os.memfd_create('x') for _ in range(9)]; [os.write(f, b'x' * 1_000_000) for f in fs for _ in range(30)]",
     "import os\nfor _ in range(10):\n  if not os.fork(): x = bytearray(40_000_000); __import__('time').sleep(5)\nwhile 1: "
     "\n  if os.waitstatus_to_exitcode(os.wait()[1]): raise SystemExit(1)"],
)  # fmt: skip
def test_every_kind_of_memory_counts(lab: Lab, allocate: str) -> None:
    assert lab.exec(["python3", "-c", allocate]).outcome is ExecOutcome.oom


@pytest.mark.parametrize("folder", ["/box", "/tmp", "/dev/shm"])
def test_filling_the_disk_is_enospc_and_kills_nobody(lab: Lab, folder: str) -> None:
    result = lab.exec(
        [
            "sh",
            "-c",
            f"dd if=/dev/zero of={folder}/a bs=1M count=31; dd if=/dev/zero of={folder}/b bs=1M count=31",
        ]
    )
    assert result.outcome is ExecOutcome.disk_limit
    assert b"No space left" in result.stderr


def test_filling_the_inodes_is_enospc(lab: Lab) -> None:
    result = lab.python("for i in range(5000): open(f'/tmp/{i}', 'w').close()")
    assert result.outcome is ExecOutcome.disk_limit
    assert f"[Errno {errno.ENOSPC}]".encode() in result.stderr


def test_a_file_above_the_largest_size_is_named_so(lab: Lab) -> None:
    result = lab.exec(
        [
            "python3",
            "-c",
            "import signal,os; signal.signal(25, signal.SIG_DFL); os.truncate(os.open('f', 66), 10**9)",
        ]
    )
    assert result.outcome is ExecOutcome.disk_limit


def test_open_files_end_at_the_limit(lab: Lab) -> None:
    code = "fs = []\ntry:\n  while True: fs.append(open('/dev/null'))\nexcept OSError as e: print(e.errno, len(fs) < 256)"
    assert said(lab.python(code)) == f"{errno.EMFILE} True"


def test_limits_cannot_be_raised(lab: Lab) -> None:
    code = """
import os, resource
for change in (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999)), lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
               lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try: change(); print("done")
    except (PermissionError, ValueError): print("denied")
"""
    assert listing(lab, code) == ["denied"] * 4


@pytest.mark.parametrize("stream", ["1", "2"])
def test_an_output_flood_is_cut_told_and_killed(lab: Lab, stream: str) -> None:
    result = lab.exec(["sh", "-c", f"yes >&{stream}"], output_bytes=200_000, cpu_seconds=30)
    assert result.outcome is ExecOutcome.output_limit
    kept, flag = (
        (result.stdout, result.stdout_truncated)
        if stream == "1"
        else (result.stderr, result.stderr_truncated)
    )
    assert (len(kept), flag) == (200_000, True)
    assert alive(lab.last_uid) == []


def test_a_daemon_dies_with_its_command(lab: Lab) -> None:
    code = """
import os, time
for _ in range(3):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        time.sleep(60)
        os._exit(0)
time.sleep(.1); print("left")
"""
    assert said(lab.python(code)) == "left"
    assert alive(lab.last_uid) == []


def test_a_grandchild_that_holds_the_pipe_delays_nothing(lab: Lab) -> None:
    async def hold(box: Box) -> None:
        result = await asyncio.wait_for(
            box.exec(["sh", "-c", "(setsid sleep 100 &) ; echo done"], wall_seconds=90), 30
        )
        assert (result.outcome, result.stdout) == (ExecOutcome.ok, b"done\n")
        result = await asyncio.wait_for(
            box.exec(["sh", "-c", "setsid sleep 100 & sleep 100"], wall_seconds=0.3), 30
        )
        assert result.outcome is ExecOutcome.timeout_wall

    lab.with_box(hold)
    assert alive(lab.last_uid) == []


def test_a_stopped_and_signal_proof_tree_dies_at_the_deadline(lab: Lab) -> None:
    code = """
import os, signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
os.fork()
os.kill(os.getpid(), signal.SIGSTOP)
"""
    assert lab.python(code, wall_seconds=0.5).outcome is ExecOutcome.timeout_wall
    assert alive(lab.last_uid) == []


def test_a_storm_of_orphans_is_reaped(lab: Lab) -> None:
    code = """
import os, time
for _ in range(500):
    child = os.fork()
    if not child:
        if not os.fork(): os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
time.sleep(.2)
print(sum(open(f"/proc/{p}/stat").read().split()[2] == "Z" for p in os.listdir("/proc") if p.isdigit()))
"""
    assert said(lab.python(code)) == "0"
