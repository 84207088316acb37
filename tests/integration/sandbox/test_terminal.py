"""Commands on a terminal."""

# ruff: noqa: E501  (programs read better unbroken)

import pytest

from tests.integration.sandbox.conftest import Lab, said
from tiltyard.sandbox import Box, ExecOutcome, InvalidExec, Process

pytestmark = pytest.mark.sandbox


def test_a_command_finds_its_terminal(lab: Lab) -> None:
    code = "import os, sys\nprint([os.isatty(n) for n in range(3)], *os.get_terminal_size()); print(open('/dev/tty', 'w').isatty())"
    result = lab.exec(["python3", "-c", code], tty=(30, 100))
    assert said(result).splitlines() == ["[True, True, True] 100 30", "True"]


def test_a_terminal_echoes_and_its_limits_hold(lab: Lab) -> None:
    assert said(lab.exec(["cat"], tty=(24, 80), stdin=b"hello\n")).splitlines() == ["hello", "hello"]
    flood = lab.exec(["yes"], tty=(24, 80), output_bytes=10_000, cpu_seconds=60)
    assert (flood.outcome, len(flood.stdout)) == (ExecOutcome.output_limit, 10_000)


async def until(process: Process, wanted: bytes) -> bytes:
    """What it wrote until `wanted` came."""
    seen, at = b"", 0
    while wanted not in seen:
        part = await process.more(offset=at)
        assert part.data, (seen, process.poll())
        seen, at = seen + part.data, part.end
    return seen


def test_a_shell_is_spoken_to(lab: Lab) -> None:
    async def talk(box: Box) -> None:
        shell = await box.start(["sh"], tty=(24, 80), env={"PS1": "$ "})
        await shell.send(b"stty size; tty -s && echo yes $((6 * 7))\n")
        assert b"24 80" in await until(shell, b"yes 42")
        shell.resize(50, 132)
        await shell.send(b"stty size; cat\n")
        await until(shell, b"50 132\r\n")
        await shell.send(b"ping\n")
        await until(shell, b"ping\r\nping\r\n")  # who is answered reads: cat is in the foreground
        await shell.send(b"\x03")
        await until(shell, b"^C\r\n$ ")
        shell.close_input()
        assert (await shell.wait()).exit_code == 130

    lab.with_box(talk)


def test_nothing_can_be_typed_into_a_terminal_from_inside(lab: Lab) -> None:
    code = "import fcntl, termios\ntry: fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('typed')\nexcept OSError as e: print(e.errno)"
    assert said(lab.exec(["python3", "-c", code], tty=(24, 80))) == "1"


@pytest.mark.parametrize("size", [(0, 80), (24, 70_000)])
def test_a_terminal_of_no_size_is_refused(lab: Lab, size: tuple[int, int]) -> None:
    with pytest.raises(InvalidExec, match="terminal"):
        lab.exec(["true"], tty=size)


def test_a_command_without_a_terminal_cannot_be_resized(lab: Lab) -> None:
    async def resize(box: Box) -> None:
        process = await box.start(["sleep", "1000"])
        with pytest.raises(InvalidExec, match="tty"):
            process.resize(24, 80)

    lab.with_box(resize)
