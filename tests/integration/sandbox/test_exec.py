"""Commands in a box: what the ordinary ones may rely on, and how the others end."""

import asyncio
import os
import socket

import pytest

from tests.integration.sandbox.conftest import Lab, said
from tiltyard.sandbox import Box, ExecOutcome, FileFault, InvalidExec, SandboxBusy, SandboxGone

pytestmark = pytest.mark.sandbox


def test_both_streams_and_the_exit_code_come_back(lab: Lab) -> None:
    result = lab.exec(["sh", "-c", "printf out; printf err >&2; exit 7"])
    assert (result.outcome, result.exit_code, result.signal) == (ExecOutcome.nonzero, 7, None)
    assert (result.stdout, result.stderr) == (b"out", b"err")


def test_python_has_its_standard_library_and_no_package(lab: Lab) -> None:
    code = "import ssl, sqlite3, unittest\ntry: import pydantic\nexcept ImportError: print('none')"
    assert said(lab.exec(["python3", "-c", code])) == "none"


def test_a_program_that_is_missing_ends_with_127(lab: Lab) -> None:
    result = lab.exec(["no-such-program"])
    assert (result.outcome, result.exit_code) == (ExecOutcome.nonzero, 127)
    assert "No such file" in result.detail


def test_a_file_that_cannot_be_executed_ends_with_126(lab: Lab) -> None:
    result = lab.exec(["./data.txt"], files={"data.txt": "text"})
    assert (result.outcome, result.exit_code) == (ExecOutcome.nonzero, 126)


def test_a_directory_as_program_ends_with_126(lab: Lab) -> None:
    assert lab.exec(["/usr"]).exit_code == 126


def test_a_signal_is_told_apart_from_a_code(lab: Lab) -> None:
    result = lab.exec(["sh", "-c", "kill -SEGV $$"])
    assert (result.outcome, result.exit_code, result.signal) == (ExecOutcome.signalled, None, 11)


def test_stdin_larger_than_a_pipe_arrives_whole(lab: Lab) -> None:
    data = os.urandom(3_000_000)
    result = lab.exec(["sha256sum"], stdin=data)
    import hashlib

    assert said(result).split()[0] == hashlib.sha256(data).hexdigest()


def test_stdin_that_nobody_reads_does_not_hang(lab: Lab) -> None:
    assert lab.exec(["true"], stdin=b"x" * 1_000_000).ok


def test_stdin_is_empty_by_default(lab: Lab) -> None:
    assert said(lab.exec(["wc", "-c"])) == "0"


def test_output_below_the_cap_is_never_lost_or_mixed(lab: Lab) -> None:
    code = "import sys\nfor i in range(40000): print(i); print(-i, file=sys.stderr)"
    result = lab.python(code)
    assert result.ok
    assert result.stdout == "".join(f"{i}\n" for i in range(40000)).encode()
    assert result.stderr == "".join(f"{-i}\n" for i in range(40000)).encode()
    assert not result.stdout_truncated
    assert not result.stderr_truncated


def test_output_exactly_at_the_cap_is_no_flood(lab: Lab) -> None:
    result = lab.exec(["head", "-c", "1000", "/dev/zero"], output_bytes=1000)
    assert result.ok
    assert len(result.stdout) == 1000


def test_output_is_bytes_whatever_they_are(lab: Lab) -> None:
    assert lab.exec(["printf", r"\377\000\033[2J\n"]).stdout == b"\xff\x00\x1b[2J\n"


def test_output_streams_while_the_command_runs(lab: Lab) -> None:
    async def stream(box: Box) -> tuple[list[bytes], bool]:
        chunks: list[bytes] = []
        first = asyncio.Event()

        def hear(_: str, chunk: bytes) -> None:
            chunks.append(chunk)
            first.set()

        command = asyncio.create_task(
            box.exec(["sh", "-c", "echo one; read x < /box/go; echo two"], on_output=hear)
        )
        await first.wait()
        running = not command.done()
        await box.write("go2", "")
        command.cancel()
        return chunks, running

    async def with_fifo(box: Box) -> tuple[list[bytes], bool]:
        assert (await box.exec(["mkfifo", "/box/go"])).ok
        return await stream(box)

    assert lab.with_box(with_fifo) == ([b"one\n"], True)


def test_the_environment_is_ours_and_nothing_of_the_host(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    lines = said(lab.exec(["env"], env={"LANG": "C", "EXTRA": "a=b"})).splitlines()
    assert sorted(line.split("=")[0] for line in lines) == [
        "EXTRA",
        "HOME",
        "LANG",
        "LOGNAME",
        "OMP_NUM_THREADS",
        "PATH",
        "TMPDIR",
        "USER",
    ]
    assert {"HOME=/box", "EXTRA=a=b", "LANG=C"} <= set(lines)


def test_the_folder_is_home_unless_named(lab: Lab) -> None:
    assert said(lab.exec(["pwd"])) == "/box"
    assert said(lab.exec(["pwd"], cwd="/tmp")) == "/tmp"
    assert lab.exec(["pwd"], cwd="/absent").exit_code == 127


def test_two_boxes_talk_over_a_passed_socket(lab: Lab) -> None:
    async def talk() -> tuple[str, str]:
        left, right = socket.socketpair()
        speak = "import socket,sys; s=socket.socket(fileno=3); s.sendall(b'ping'); print(s.recv(9).decode())"
        answer = "import socket; s=socket.socket(fileno=5); print(s.recv(9).decode()); s.sendall(b'pong')"
        with left, right:
            async with lab.pool.acquire_many(2) as (a, b):
                results = await asyncio.gather(
                    a.exec(["python3", "-c", speak], fds={3: left}),
                    b.exec(["python3", "-c", answer], fds={5: right.fileno()}),
                )
        return said(results[0]), said(results[1])

    assert lab.run(talk()) == ("pong", "ping")


def test_no_descriptor_but_the_asked_ones_reaches_a_command(lab: Lab) -> None:
    assert (
        said(lab.exec(["sh", "-c", "ls /proc/self/fd | tr '\\n' ' '"])) == "0 1 2 3"
    )  # 3: the folder that ls reads


def test_cpu_time_ends_a_busy_loop(lab: Lab) -> None:
    result = lab.python("while True: pass", cpu_seconds=0.3, wall_seconds=60)
    assert result.outcome is ExecOutcome.timeout_cpu
    assert result.cpu_seconds >= 0.3


def test_cpu_time_of_all_processes_counts(lab: Lab) -> None:
    code = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    assert lab.python(code, cpu_seconds=0.5, wall_seconds=60).outcome is ExecOutcome.timeout_cpu


def test_cpu_time_of_exited_children_counts(lab: Lab) -> None:
    code = """
import os, time
while True:
    if not os.fork():
        end = time.process_time() + .05
        while time.process_time() < end: pass
        os._exit(0)
    os.wait()
"""
    assert lab.python(code, cpu_seconds=0.4, wall_seconds=60).outcome is ExecOutcome.timeout_cpu


def test_wall_time_ends_a_sleeper_that_was_not_starved(lab: Lab) -> None:
    result = lab.exec(["sleep", "60"], wall_seconds=2)
    assert result.outcome is ExecOutcome.timeout_wall
    assert not result.starved


def test_a_busy_command_that_ran_out_of_wall_time_is_called_starved(lab: Lab) -> None:
    code = "import os\nfor _ in range(4): os.fork()\nwhile True: pass"  # 16 want one CPU
    result = lab.python(code, cpu_seconds=60, wall_seconds=1.0)
    assert result.outcome is ExecOutcome.timeout_wall
    assert result.starved


def test_idleness_ends_a_command_that_neither_writes_nor_computes(lab: Lab) -> None:
    result = lab.exec(["sh", "-c", "echo begun; sleep 60"], idle_seconds=0.3, wall_seconds=60)
    assert (result.outcome, result.stdout) == (ExecOutcome.timeout_idle, b"begun\n")


def test_a_computing_command_is_not_idle(lab: Lab) -> None:
    code = "import time\nend = time.process_time() + .8\nwhile time.process_time() < end: pass"
    assert lab.python(code, idle_seconds=0.2, wall_seconds=60).ok


def test_output_before_a_timeout_is_kept(lab: Lab) -> None:
    result = lab.exec(["sh", "-c", "echo so far; sleep 60"], wall_seconds=0.3)
    assert (result.outcome, result.stdout) == (ExecOutcome.timeout_wall, b"so far\n")


def test_arguments_that_no_program_can_take_are_refused_before_anything_runs(lab: Lab) -> None:
    for argv in ([], ["a\0b"], ["x" * 5_000_000], ["\ud800"]):
        with pytest.raises(InvalidExec):
            lab.exec(argv)
    with pytest.raises(InvalidExec, match="list"):
        lab.exec("true")  # type: ignore[arg-type]
    with pytest.raises(InvalidExec, match="descriptor 2"):
        lab.exec(["true"], fds={2: 0})
    with pytest.raises(InvalidExec, match="wall_seconds"):
        lab.exec(["true"], wall_seconds=-1)
    with pytest.raises(InvalidExec, match="NUL"):
        lab.exec(["true"], env={"A": "x\0y"})


def test_a_second_command_in_a_busy_box_is_refused(lab: Lab) -> None:
    async def twice(box: Box) -> None:
        first = asyncio.create_task(box.exec(["sleep", "0.2"]))
        await asyncio.sleep(0)
        with pytest.raises(SandboxBusy):
            await box.exec(["true"])
        assert (await first).ok

    lab.with_box(twice)


def test_a_cancelled_command_is_killed_and_spoils_its_box(lab: Lab) -> None:
    async def cancel(box: Box) -> None:
        command = asyncio.create_task(box.exec(["sleep", "60"]))
        await asyncio.sleep(0.1)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        with pytest.raises(SandboxGone, match="cancelled"):
            await box.exec(["true"])

    lab.with_box(cancel)


def test_files_that_do_not_fit_are_a_typed_error_and_the_box_lives(lab: Lab) -> None:
    async def fill(box: Box) -> None:
        for number in range(3):
            await box.write(f"big{number}", b"x" * 10_000_000)
        with pytest.raises(FileFault, match="No space"):
            await box.write("one more", b"x" * 10_000_000)
        assert (await box.exec(["true"])).ok

    lab.with_box(fill)
