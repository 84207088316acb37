"""Commands that run beside others in a box: their output, their end, and what must not outlive them."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab, alive, said
from tiltyard.sandbox import Box, ExecOutcome, InvalidExec, SandboxBusy, WarmPool

pytestmark = pytest.mark.sandbox


NAMES = """
import os
def living(pid): return not open(f"/proc/{pid}/stat").read().rpartition(") ")[2].startswith("Z")  # a warm start's dead parent
print(*sorted(open(f"/proc/{p}/comm").read().strip() for p in os.listdir("/proc") if p.isdigit() and living(p)))
"""


def processes(uid: int, name: str) -> list[int]:
    """Host pids of a uid's processes of that name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            status = entry.joinpath("status").read_text() if entry.name.isdigit() else ""
        except OSError:
            continue
        if f"Name:\t{name}\n" in status and f"Uid:\t{uid}\t" in status:
            found.append(int(entry.name))
    return found


async def until_alone(box: Box) -> None:
    """PID 1 is all that is left; a command's supervisor ends a moment after the command."""
    async with asyncio.timeout(60):
        while (await box.stats()).processes > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_background_command_outlives_foreground_ones_and_its_end_is_typed(lab: Lab) -> None:
    async def both(box: Box) -> None:
        sleeper = await box.start(["sh", "-c", "echo up; sleep 1000"])
        assert (await sleeper.more()).data == b"up\n"
        for _ in range(3):
            assert (await box.exec(["sh", "-c", "sleep 0.01 & setsid sleep 1000 &"])).ok
        assert sleeper.poll() is None
        assert (await box.stats()).background == 1
        ended = await sleeper.kill()
        assert (ended.outcome, ended.stdout) == (ExecOutcome.signalled, b"up\n")
        assert sleeper.poll() == ended
        await until_alone(box)

    lab.with_box(both)
    assert alive(lab.last_uid) == []


def test_what_a_foreground_command_leaves_dies_beside_a_background_one(lab: Lab) -> None:
    async def both(box: Box) -> str:
        await box.start(["sleep", "1000"])
        left = "import os, time\nfor _ in range(5):\n  if not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(1000)"
        assert (await box.exec(["python3", "-I", "-S", "left.py"], files={"left.py": left})).ok
        return said(await box.exec(["python3", "-I", "-S", "-c", NAMES]))

    assert lab.with_box(both).split() == ["python3", "sleep", "tilt-branch", "tilt-init"]


def test_the_leader_s_end_takes_its_children(lab: Lab) -> None:
    code = """
import os, time
for _ in range(3):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        time.sleep(1000)
print("led", flush=True)
"""

    async def lead(box: Box) -> None:
        leader = await box.start(["python3", "-I", "-S", "lead.py"], files={"lead.py": code})
        assert (await leader.wait()).stdout == b"led\n"
        await until_alone(box)

    lab.with_box(lead)


def test_a_background_fork_bomb_is_killed_whole(lab: Lab) -> None:
    code = "import os\nprint('go', flush=True)\nwhile True:\n  try:\n    if not os.fork(): os.setsid()\n  except OSError: pass"

    async def bomb(box: Box) -> None:
        bomb = await box.start(["python3", "-I", "-S", "-c", code])
        await bomb.more()
        await bomb.kill()
        assert (await box.exec(["true"])).ok
        await until_alone(box)

    lab.with_box(bomb)


def test_output_is_kept_with_its_offsets(lab: Lab) -> None:
    async def talk(box: Box) -> None:
        talker = await box.start(
            ["sh", "-c", "seq 1 2000; echo err >&2; read x; echo got $x"], keep_bytes=100
        )
        whole = "".join(f"{n}\n" for n in range(1, 2001)).encode()
        seen = b""
        at = 0
        while at < len(whole):
            part = await talker.more(offset=at)
            seen, at = seen + part.data, part.end
        kept = talker.output()
        assert (kept.data, kept.start, kept.end) == (whole[-100:], len(whole) - 100, len(whole))
        assert seen.endswith(whole[-100:])
        await talker.send(b"it\n")
        assert (await talker.more(offset=at)).data == b"got it\n"
        ended = await talker.wait()
        assert (ended.outcome, ended.stderr) == (ExecOutcome.ok, b"err\n")
        assert (await talker.more(offset=at + 7)).data == b""
        with pytest.raises(InvalidExec, match="closed"):
            await talker.send(b"late")

    lab.with_box(talk)


def test_the_end_of_its_input_is_told(lab: Lab) -> None:
    async def feed(box: Box) -> bytes:
        counter = await box.start(["wc", "-c"])
        await counter.send(b"x" * 300_000)
        counter.close_input()
        return (await counter.wait()).stdout

    assert lab.with_box(feed) == b"300000\n"


def test_its_own_limits_hold_and_others_do_not_pay(lab: Lab) -> None:
    async def burn(box: Box) -> None:
        burner = await box.start(["python3", "-c", "while True: pass"], cpu_seconds=1.5)
        idler = await box.start(["sleep", "1000"], idle_seconds=0.5)
        quiet = await box.exec(["sleep", "1"], cpu_seconds=0.4, wall_seconds=60)
        assert quiet.outcome is ExecOutcome.ok
        assert (await burner.wait()).outcome is ExecOutcome.timeout_cpu
        assert (await idler.wait()).outcome is ExecOutcome.timeout_idle

    lab.with_box(burn)


def test_more_than_eight_are_refused_and_a_missing_program_is_told(lab: Lab) -> None:
    async def crowd() -> None:
        async with lab.pool.acquire(timeout=60) as box:
            running = [await box.start(["sleep", "1000"]) for _ in range(8)]
            with pytest.raises(SandboxBusy, match="at most 8"):
                await box.start(["sleep", "1000"])
            await running[0].kill()
            missing = await (await box.start(["no-such-program"])).wait()
            assert (missing.outcome, missing.exit_code) == (ExecOutcome.nonzero, 127)
            last = running[1]
        ended = await asyncio.wait_for(last.wait(), 60)
        assert ended.outcome is ExecOutcome.infra_error

    lab.run(crowd())
    assert alive(lab.last_uid) == []


def test_its_supervisor_s_death_is_its_own(lab: Lab) -> None:
    """The memory limit may kill any process of the box, a branch too: nothing may be left without an owner."""
    code = "import os, time\nif not os.fork(): os.setsid()\nprint('up', flush=True)\ntime.sleep(1000)"

    async def kill_branch() -> None:
        async with WarmPool(size=1, limits=LIMITS) as pool, pool.acquire() as box:
            process = await box.start(["python3", "-I", "-S", "-c", code])
            await process.more()
            uid = 1_900_000_000 + 2 * int(box.id.split("-")[1]) + 1
            (branch,) = processes(uid, "tilt-branch")
            os.kill(branch, signal.SIGKILL)
            ended = await process.wait()
            assert ended.outcome is ExecOutcome.infra_error
            await until_alone(box)

    lab.run(kill_branch())
