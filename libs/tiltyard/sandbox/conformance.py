"""What every backend must do, law by law, each a command whose end is known.

Guarantees: a law passes only when the command ended as it must and said what it must.
Does not: replace the tests. This is what an operator runs on a new machine."""

# ruff: noqa: E501  (programs read better unbroken)

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .backend import Box
from .errors import CapabilityRefused, SandboxError
from .limits import Limits
from .pool import WarmPool
from .resting import refuses, stands_still
from .result import ExecOutcome

LIMITS = Limits(memory_mb=128, pids=24, disk_mb=16, inodes=1024)
"""Small, so that every limit is reached quickly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A Python program, or a command, and its only right end."""

    name: str
    program: str = ""
    outcome: ExecOutcome = ExecOutcome.ok
    says: bytes = b""
    """all that it prints on stdout; empty: not looked at"""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    argv: tuple[str, ...] = ()
    """the command, where it is not the program"""
    code: int | None = None
    """its exit code; None: not looked at"""
    play: Callable[[Box], Awaitable[str]] | None = None
    """instead of one command: what is wrong, empty when nothing is"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a law came out."""

    law: str
    holds: bool
    detail: str


def _denied(attempt: str) -> str:
    """A program that prints `denied` when the kernel refuses an attempt."""
    return f"import os, socket\ntry: {attempt}; print('done')\nexcept OSError: print('denied')"


_LIVING = """
import os
stats = [open(f"/proc/{n}/stat").read() for n in os.listdir("/proc") if n.isdigit()]
print(sum(not s.rpartition(") ")[2].startswith("Z") for s in stats))
"""

LAWS = (
    Law(name="a program runs", program="print('hello')", says=b"hello\n"),
    Law(name="its exit code comes back", program="raise SystemExit(3)", outcome=ExecOutcome.nonzero),
    Law(name="a signal is told", program="import os; os.abort()", outcome=ExecOutcome.signalled),
    Law(
        name="stdin arrives",
        program="import sys; print(len(sys.stdin.buffer.read()))",
        says=b"1000000\n",
        options={"stdin": b"x" * 1_000_000},
    ),
    Law(
        name="CPU time ends it",
        program="while True: pass",
        outcome=ExecOutcome.timeout_cpu,
        options={"cpu_seconds": 0.2, "wall_seconds": 60},
    ),
    Law(
        name="wall time ends it",
        program="import time; time.sleep(60)",
        outcome=ExecOutcome.timeout_wall,
        options={"wall_seconds": 0.3},
    ),
    Law(
        name="idleness ends it",
        program="import time; time.sleep(60)",
        outcome=ExecOutcome.timeout_idle,
        options={"idle_seconds": 0.3, "wall_seconds": 60},
    ),
    Law(name="memory ends it", program="x = bytearray(500_000_000)", outcome=ExecOutcome.oom),
    Law(
        name="forks end at the limit",
        program="import os, time\nfor _ in range(99):\n  if not os.fork(): time.sleep(9)",
        outcome=ExecOutcome.pids,
    ),
    Law(
        name="the disk ends at the limit",
        program="for i in range(9): open(f'/tmp/{i}', 'wb').write(b'x' * 4_000_000)",
        outcome=ExecOutcome.disk_limit,
    ),
    Law(
        name="inodes end at the limit",
        program="for i in range(3000): open(f'/tmp/{i}', 'wb').close()",
        outcome=ExecOutcome.disk_limit,
    ),
    Law(
        name="an output flood ends it",
        program="while True: print('x' * 1000)",
        outcome=ExecOutcome.output_limit,
        options={"output_bytes": 100_000},
    ),
    Law(
        name="no network but loopback",
        program="import socket; print([n for _, n in socket.if_nameindex()])",
        says=b"['lo']\n",
    ),
    Law(
        name="no way to another address",
        program=_denied("socket.create_connection(('1.1.1.1', 53), 2)"),
        says=b"denied\n",
    ),
    Law(name="not root", program="import os; print(os.getuid() != 0)", says=b"True\n"),
    Law(name="identity cannot change", program=_denied("os.setuid(0)"), says=b"denied\n"),
    Law(
        name="kernel settings are read-only",
        program=_denied("open('/proc/sys/kernel/panic', 'w')"),
        says=b"denied\n",
    ),
    Law(name="the root is read-only", program=_denied("open('/usr/x', 'w')"), says=b"denied\n"),
    Law(name="PID 1 cannot be killed", program=_denied("os.kill(1, 9)"), says=b"denied\n"),
    Law(name="PID 1 cannot be read", program=_denied("open('/proc/1/mem')"), says=b"denied\n"),
    Law(
        name="no other process is seen",
        program=_LIVING,
        says=b"2\n",
    ),
    Law(
        name="a daemon dies with its command",
        program="import os, time\nif not os.fork():\n  os.setsid()\n  time.sleep(60)\nprint('left')",
        says=b"left\n",
        options={"wall_seconds": 30},
    ),
    Law(name="a missing program is 127", argv=("no-such-program",), outcome=ExecOutcome.nonzero, code=127),
    Law(name="a file that is no program is 126", argv=("./law.py",), outcome=ExecOutcome.nonzero, code=126),
    Law(name="a folder is no program", argv=("/tmp",), outcome=ExecOutcome.nonzero, code=126),
    Law(
        name="a folder that is not there is no place to start",
        argv=("true",),
        outcome=ExecOutcome.nonzero,
        options={"cwd": "/box/none"},
    ),
    Law(name="commands start in the home", argv=("pwd",), says=b"/box\n"),
    Law(name="a folder to start in is kept", argv=("pwd",), says=b"/tmp\n", options={"cwd": "/tmp"}),
    Law(
        name="the environment is small and ours",
        program="import os; print('TILTYARD' not in str(os.environ), os.environ['HOME'])",
        says=b"True /box\n",
    ),
    Law(
        name="a variable arrives",
        program="import os; print(os.environ['LAW'])",
        says=b"a b\n",
        options={"env": {"LAW": "a b"}},
    ),
    Law(
        name="arguments arrive as they are",
        argv=("printf", "%s|", "a b", "", "$x", "é"),
        says="a b||$x|é|".encode(),
    ),
    Law(name="a path search finds what is installed", argv=("sh", "-c", "echo found"), says=b"found\n"),
    Law(
        name="output that is not UTF-8 comes back as it was",
        program="import os; os.write(1, bytes(range(256)))",
        says=bytes(range(256)),
    ),
    Law(
        name="without input there is an end at once",
        program="print(repr(input.__name__), not __import__('sys').stdin.read())",
        says=b"'input' True\n",
    ),
    Law(
        name="input that nobody reads delays nothing",
        program="print(1)",
        says=b"1\n",
        options={"stdin": b"x" * 3_000_000},
    ),
    Law(
        name="files come with the command, folders made",
        program="print(open('a/b/c').read())",
        says=b"text\n",
        options={"files": {"a/b/c": "text"}},
    ),
    Law(
        name="half a megabyte of output loses nothing",
        program="import sys; sys.stdout.write('x' * 500_000)",
        says=b"x" * 500_000,
    ),
    Law(
        name="descriptors end at the limit",
        program="fs = []\ntry:\n  while len(fs) < 5000: fs.append(open('/dev/null'))\nexcept OSError as e: print(e.errno)",
        says=b"24\n",
    ),
    Law(
        name="limits cannot be raised",
        program="import resource\ntry: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)); print('raised')\nexcept (OSError, ValueError): print('denied')",
        says=b"denied\n",
    ),
    Law(
        name="a command on a terminal finds one",
        program="import os; print(*os.get_terminal_size())",
        says=b"100 30\r\n",
        options={"tty": (30, 100)},
    ),
    Law(
        name="loopback is up",
        program="import socket; s = socket.create_server(('127.0.0.1', 8080)); socket.create_connection(('127.0.0.1', 8080)); print('up')",
        says=b"up\n",
    ),
    Law(
        name="no device but the harmless can be opened",
        program=_denied("open('/dev/mem', 'rb')"),
        says=b"denied\n",
    ),
    Law(
        name="no new privilege",
        program="import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))",  # PR_GET_NO_NEW_PRIVS
        says=b"1\n",
    ),
    Law(
        name="the bounding set is empty",
        program="print([int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('CapBnd')])",
        says=b"[0]\n",
    ),
    Law(
        name="shared memory works",
        program="import mmap, os; f = open('/dev/shm/x', 'w+b'); f.truncate(4096); mmap.mmap(f.fileno(), 4096)[0] = 1; print('ok')",
        says=b"ok\n",
    ),
    Law(
        name="threads work",
        program="import threading as t; x = [t.Thread(target=print, args=('in',)) for _ in range(2)]; [y.start() for y in x]; [y.join() for y in x]",
        says=b"in\nin\n",
    ),
    Law(name="a paused box refuses commands, and goes on with its files", play=refuses),
    Law(name="what is paused stands still, and goes on", play=stands_still),
)


async def conform(pool: WarmPool) -> AsyncIterator[Finding]:
    """Tries every law, each in a fresh box of a pool with `LIMITS`."""
    for law in LAWS:
        async with pool.acquire() as box:
            if law.play is not None:
                yield await _played(law.name, law.play, box)
                continue
            argv = list(law.argv) or ["python3", "-I", "-S", "law.py"]
            files = {"law.py": law.program, **law.options.get("files", {})}
            options = {name: value for name, value in law.options.items() if name != "files"}
            try:
                result = await box.exec(argv, files=files, **options)
            except CapabilityRefused as refusal:
                yield Finding(law=law.name, holds=False, detail=f"refused: {refusal}")
                continue
        holds = result.outcome is law.outcome and (not law.says or result.stdout == law.says)
        holds = holds and law.code in (None, result.exit_code)
        said = result.stdout[:80] if result.ok else (result.detail or result.stderr[-200:])
        yield Finding(law=law.name, holds=holds, detail=f"{result.outcome}: {said!r}")


async def _played(name: str, play: Callable[[Box], Awaitable[str]], box: Box) -> Finding:
    try:
        wrong = await play(box)
    except SandboxError as error:
        refused = "refused: " if isinstance(error, CapabilityRefused) else ""
        wrong = f"{refused}{error}"
    return Finding(law=name, holds=not wrong, detail=wrong or "as it must")
