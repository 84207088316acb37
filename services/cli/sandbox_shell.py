"""`tiltyard sandbox shell`: a terminal in a box.

Guarantees: this terminal is as it was, however the shell ends; the shell's exit code is the command's.
Does not: keep anything. The box goes with its shell."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import BinaryIO

import click

from services.cli.boxes import accepting, made_by, source
from services.cli.output import Output, reporting
from tiltyard.sandbox import (
    Box,
    ExecResult,
    InvalidExec,
    Limits,
    Process,
    SandboxError,
    SandboxGone,
    WarmPool,
)

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash -i; exec sh -i")
_SIZE = (24, 80)
_CHUNK = 64 << 10


@click.command("shell")
@source
@accepting
@click.option("--memory-mb", default=512, show_default=True, help="MiB of memory, its files included.")
@click.option("--pids", default=64, show_default=True, help="Processes and threads.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@reporting
def shell_command(
    out: Output,
    argv: tuple[str, ...],
    backend: str,
    runtime: str | None,
    image: str | None,
    accept: tuple[str, ...],
    memory_mb: int,
    pids: int,
) -> int:
    """Open a terminal in a fresh sandbox, which goes with it; bash where the image has it, or ARGV.

    Exit code: the shell's own; 128 and the signal when one ended it; 1 when a limit did. With `--json` how it
    ended goes to stdout, and the terminal to stderr. Not in boxes of runsc, into which no terminal can be
    passed.

    \b
      tiltyard sandbox shell
      tiltyard sandbox shell --backend docker --image debian:12
      tiltyard sandbox shell -- python3
    """
    try:
        backend_, image = made_by(backend, runtime, image, accept)
        limits = Limits(memory_mb=memory_mb, pids=pids, disk_mb=min(64, memory_mb // 2))
        pool = WarmPool(backend=backend_, image=image, size=1, limits=limits)
        screen = sys.stderr.buffer if out.as_json else sys.stdout.buffer
        result = asyncio.run(_lend(pool, argv or _SHELL, screen))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    if result.exit_code is None and result.signal is None:
        click.echo(f"{result.outcome}: {result.detail}", err=True)
    out.result({"outcome": result.outcome, "exit_code": _code(result), "detail": result.detail})
    return _code(result)


def _code(result: ExecResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    return 128 + result.signal if result.signal else 1


async def _lend(pool: WarmPool, argv: tuple[str, ...], screen: BinaryIO) -> ExecResult:
    async with pool, pool.acquire() as box:
        return await _interact(box, argv, screen)


async def _interact(box: Box, argv: tuple[str, ...], screen: BinaryIO) -> ExecResult:
    """Passes this terminal's input, output and size on until the command ends."""
    process = await box.start(argv, env={"TERM": os.environ.get("TERM", "dumb")}, tty=_size())
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    with _raw(stdin):
        loop.add_signal_handler(signal.SIGWINCH, lambda: _resize(process))
        typing = asyncio.create_task(_type(process, stdin))
        try:
            await _show(process, screen)
        finally:
            typing.cancel()
            loop.remove_signal_handler(signal.SIGWINCH)
    return await process.wait()


async def _type(process: Process, stdin: int) -> None:
    """What was typed goes in; the end of a piped input is a typed Ctrl-D."""
    with suppress(SandboxGone, InvalidExec):  # the shell has ended: `_show` tells
        async with aclosing(_typed(stdin)) as typed:
            async for data in typed:
                await process.send(data)
        process.close_input()


async def _typed(stdin: int) -> AsyncGenerator[bytes, None]:
    """What comes in, until its end."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        data = os.read(stdin, _CHUNK)
        if not data:
            loop.remove_reader(stdin)
        waiting.put_nowait(data)

    try:
        loop.add_reader(stdin, read)
    except PermissionError:  # a file: it cannot be waited for, and need not be
        while data := os.read(stdin, _CHUNK):
            yield data
        return
    try:
        while data := await waiting.get():
            yield data
    finally:
        loop.remove_reader(stdin)


async def _show(process: Process, screen: BinaryIO) -> None:
    at = 0
    while True:
        part = await process.more("stdout", at)
        if not part.data and process.poll() is not None:
            return
        at = part.end
        screen.write(part.data)
        screen.flush()


def _resize(process: Process) -> None:
    with suppress(InvalidExec, SandboxGone):
        process.resize(*_size())


def _size() -> tuple[int, int]:
    """Rows and columns of this terminal."""
    with suppress(OSError):
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
        if rows and columns:
            return rows, columns
    return _SIZE


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Each key as it is typed, control characters too: they are the box's."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead is kept
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
