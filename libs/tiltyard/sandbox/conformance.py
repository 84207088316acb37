"""What every backend must do, law by law, each a command whose end is known.

Guarantees: a law passes only when the command ended as it must and said what it must.
Does not: replace the tests. This is what an operator runs on a new machine."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .limits import Limits
from .pool import WarmPool
from .result import ExecOutcome

LIMITS = Limits(memory_mb=128, pids=24, disk_mb=16, inodes=1024)
"""Small, so that every limit is reached quickly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A Python program and its only right end."""

    name: str
    program: str
    outcome: ExecOutcome = ExecOutcome.ok
    says: bytes = b""
    """all that it prints on stdout; empty: not looked at"""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How a law came out."""

    law: str
    holds: bool
    detail: str


def _denied(attempt: str) -> str:
    """A program that prints `denied` when the kernel refuses an attempt."""
    return f"import os, socket\ntry: {attempt}; print('done')\nexcept OSError: print('denied')"


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
        program="import os; print(sum(n.isdigit() for n in os.listdir('/proc')))",
        says=b"2\n",
    ),
    Law(
        name="a daemon dies with its command",
        program="import os, time\nif not os.fork():\n  os.setsid()\n  time.sleep(60)\nprint('left')",
        says=b"left\n",
        options={"wall_seconds": 30},
    ),
)


async def conform(pool: WarmPool) -> AsyncIterator[Finding]:
    """Tries every law, each in a fresh box of a pool with `LIMITS`."""
    for law in LAWS:
        async with pool.acquire() as box:
            result = await box.exec(
                ["python3", "-I", "-S", "law.py"], files={"law.py": law.program}, **law.options
            )
        holds = result.outcome is law.outcome and (not law.says or result.stdout == law.says)
        said = result.stdout[:80] if result.ok else (result.detail or result.stderr[-200:])
        yield Finding(law=law.name, holds=holds, detail=f"{result.outcome}: {said!r}")
