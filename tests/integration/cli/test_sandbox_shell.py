"""`tiltyard sandbox shell` on a terminal of its own."""

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root"),
]
_SECONDS = 60


class Terminal:
    """A terminal with the command on it, typed to and read from as a person would."""

    def __init__(self, master: int, process: "subprocess.Popen[bytes]") -> None:
        self.master = master
        self.process = process
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def until(self, wanted: bytes) -> None:
        """Reads until that was shown."""
        until = time.monotonic() + _SECONDS
        while wanted not in self.seen:
            assert time.monotonic() < until, f"{wanted!r} was never shown: {self.seen[-2000:]!r}"
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError as error:
                    raise AssertionError(f"it ended before {wanted!r}: {self.seen[-2000:]!r}") from error
        self.seen = self.seen.partition(wanted)[2]


@contextmanager
def shell(*words: str) -> Iterator[Terminal]:
    master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
        before = termios.tcgetattr(slave)
        command = [sys.executable, "-m", "services.cli", "sandbox", "shell", *words]
        with subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=slave, stdout=slave, stderr=slave
        ) as process:
            try:
                yield Terminal(master, process)
            finally:
                process.kill()
        assert termios.tcgetattr(slave) == before, "the terminal was left otherwise than it was found"
    finally:
        os.close(master)
        os.close(slave)


def test_it_is_a_terminal_of_this_ones_size_and_its_code_is_the_shells() -> None:
    with shell() as terminal:
        terminal.until(b"$ ")
        terminal.type("stty size; id -u; echo at $((6 * 7))\r")
        terminal.until(b"30 100\r\n")
        terminal.until(b"at 42\r\n")
        terminal.resize(50, 120)
        terminal.type("sleep 0.2; stty size\r")
        terminal.until(b"50 120\r\n")
        terminal.type("sleep 100\r")
        terminal.until(b"sleep 100")
        time.sleep(0.3)
        terminal.type("\x03")
        terminal.type("echo inter''rupted\r")
        terminal.until(b"interrupted\r\n")
        terminal.type("exit 7\r")
        assert terminal.process.wait(_SECONDS) == 7


def test_a_command_may_stand_for_the_shell_and_a_signal_is_told() -> None:
    with shell("--", "sh", "-c", "echo pid $$; read line; kill -9 $$") as terminal:
        terminal.until(b"pid")
        terminal.type("go\r")
        assert terminal.process.wait(_SECONDS) == 128 + 9


def test_piped_input_is_typed_and_its_end_is_the_shells() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli", "sandbox", "shell"],
        input=b"echo $((6 * 7)) piped\nexit 3\n",
        capture_output=True,
        timeout=_SECONDS,
        check=False,
    )
    assert b"42 piped" in ran.stdout
    assert ran.returncode == 3


def test_a_program_gets_how_it_ended_and_people_get_the_terminal() -> None:
    words = ["sandbox", "shell", "--json", "--", "sh", "-c", "echo hi; exit 3"]
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert json.loads(done.stdout) == {"outcome": "nonzero", "exit_code": 3, "detail": ""}
    assert "hi" in done.stderr
    assert done.returncode == 3
