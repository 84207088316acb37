"""Rows 1 to 15 and 32: attacks that use up what the machine has, or do not end."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.result import ExecOutcome as End

from .attack import WENT, Arena, Attack, must, must_end, must_say, python, usable, went

_BOMB = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if not os.fork(): os.setsid()
    except OSError: pass
"""
_SLEEPERS = "import os, time\nfor _ in range(200):\n  if not os.fork(): time.sleep(100)"
_MEMORY = {
    "private": "x = bytearray(500_000_000)",
    "shared mapping": "import mmap; m = mmap.mmap(-1, 400_000_000); m.write(b'x' * 400_000_000)",
    "memfd": "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, b'x' * 1_000_000)",
    "many processes": "import os, sys\nkids = []\nfor _ in range(12):\n  pid = os.fork()\n  if not pid: x = bytearray(40_000_000); __import__('time').sleep(3); os._exit(0)\n  kids.append(pid)\nsys.exit(any(os.waitpid(k, 0)[1] for k in kids))",
    "System V": "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nc.shmat.restype = ctypes.c_void_p\nfor _ in range(40):\n  i = c.shmget(0, 20_000_000, 0o1600)\n  if i < 0: raise SystemExit(1)\n  ctypes.memset(c.shmat(i, None, 0), 1, 20_000_000)",
}
_FDS = """
import os, select, socket, ctypes
libc = ctypes.CDLL(None)
def inotify():
    fd = libc.inotify_init1(0)
    if fd < 0: raise OSError(24, 'refused')
    return fd
for make in (lambda: os.open("/dev/null", 0), os.pipe, socket.socketpair, select.epoll, inotify):
    held = []
    try:
        while len(held) < 5000: held.append(make())
        print("unbounded")
    except OSError as error: print(error.errno)
    for each in held:
        for fd in each if isinstance(each, tuple) else [each]:
            os.close(fd) if isinstance(fd, int) else fd.close()
"""
_ZOMBIES = """
import os, time
for _ in range(500):
    child = os.fork()
    if not child:
        os.fork()
        os._exit(0)
    os.waitpid(child, 0)
time.sleep(.5)
print(sum(open(f"/proc/{p}/stat").read().rpartition(") ")[2].startswith("Z") for p in os.listdir("/proc") if p.isdigit()))
"""
_LIVING = """
import os
print(sum(not open(f"/proc/{p}/stat").read().rpartition(") ")[2].startswith("Z") for p in os.listdir("/proc") if p.isdigit()))
"""
_DAEMONS = """
import os, time
for _ in range(3):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        time.sleep(100)
time.sleep(.1); print("left")
"""
_STUBBORN = """
import os, signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
os.fork()
os.kill(os.getpid(), signal.SIGSTOP)
"""


async def alone(box: Box) -> None:
    """Nothing of a command lives after it; what is dead and not yet reaped does not count."""
    found = await python(box, _LIVING)
    must_say(found, "2")


async def fork_bomb(arena: Arena) -> None:
    async def bomb(box: Box) -> None:
        result = await python(box, _BOMB, cpu_seconds=0.5, wall_seconds=20)
        must(not await went(box, result), WENT)
        must_end(result, End.timeout_cpu, End.timeout_wall)
        await alone(box)

    await arena.with_box(bomb)


async def bounded_forks(arena: Arena) -> None:
    async def fork(box: Box) -> None:
        result = await python(box, _SLEEPERS)
        must(not await went(box, result), WENT)
        must_end(result, End.pids, End.nonzero)

    await arena.with_box(fork)


async def memory(arena: Arena) -> None:
    lost: list[str] = []
    for kind, code in _MEMORY.items():

        async def eat(box: Box, code: str = code, kind: str = kind) -> None:
            result = await box.exec(["python3", "-c", code], cpu_seconds=30)
            must(result.outcome in (End.oom, End.nonzero), f"{kind}: {result.outcome}")
            if await went(box, result):
                lost.append(kind)

        await arena.with_box(eat)
    must(not lost, f"{WENT}: {', '.join(lost)}")


async def fill(arena: Arena) -> None:
    async def pour(box: Box) -> None:
        for folder in ("/tmp", "/dev/shm", "/box"):
            result = await box.exec(
                [
                    "sh",
                    "-c",
                    f"i=0; while dd if=/dev/zero of={folder}/$i bs=1M count=8 2>/dev/null; do i=$((i+1)); done; rm -f {folder}/[0-9]*; exit 9",
                ]
            )
            must_end(result, End.disk_limit, End.nonzero)
            must(result.exit_code == 9, f"{folder}: {result.exit_code}")
        await usable(box)

    await arena.with_box(pour)


async def page_cache(arena: Arena) -> None:
    code = "import os\nn = 0\nfor top, _, files in os.walk('/usr/lib'):\n  for f in files:\n    try: n += len(open(os.path.join(top, f), 'rb').read(4_000_000))\n    except OSError: pass\n  if n > 300_000_000: break\nprint('read')"
    must_say(await arena.python(code, cpu_seconds=60, wall_seconds=100), "read")


async def descriptors(arena: Arena) -> None:
    result = await arena.python(_FDS)
    must(result.ok and b"unbounded" not in result.stdout, result.stdout)


async def disk(arena: Arena) -> None:
    async def write(box: Box) -> None:
        result = await python(
            box,
            "import signal, os\nsignal.signal(25, signal.SIG_DFL)\nos.truncate(os.open('sparse', 66), 1 << 40)",
        )
        must_end(result, End.disk_limit, End.nonzero)
        result = await python(
            box,
            "import os; os.posix_fallocate(os.open('big', 66), 0, 15_000_000); os.posix_fallocate(os.open('big2', 66), 0, 15_000_000)",
        )
        must(not result.ok, result.outcome)
        await usable(box)

    await arena.with_box(write)


async def inodes(arena: Arena) -> None:
    result = await arena.python("for i in range(3000): open(f'/tmp/{i}', 'w').close()")
    must_end(result, End.disk_limit)


async def flood(arena: Arena) -> None:
    for program in (  # each ends, so that nobody is flooded where nothing stops it
        "for _ in range(20_000): print('x' * 1000)",
        "import sys\nfor _ in range(200): sys.stdout.write('x' * 100_000)",
        "import os\nfor _ in range(80_000): os.write(2, bytes(range(256)) + b'\\x1b[2J')",
    ):
        result = await arena.python(program, output_bytes=100_000, cpu_seconds=30)
        must_end(result, End.output_limit)
        must(max(len(result.stdout), len(result.stderr)) == 100_000, (len(result.stdout), len(result.stderr)))
        must(result.stdout_truncated or result.stderr_truncated, result.outcome)


async def undrained(arena: Arena) -> None:
    code = "import sys\nfor n in range(100_000): print('o' * 4); print('e' * 4, file=sys.stderr)"
    result = await arena.python(code, cpu_seconds=200, wall_seconds=400, idle_seconds=10)
    must(
        result.ok and (len(result.stdout), len(result.stderr)) == (500_000, 500_000),
        (result.outcome, len(result.stdout)),
    )


async def stdin(arena: Arena) -> None:
    reader = "import sys; print(repr(sys.stdin.read()))"
    must_say(await arena.python(reader, idle_seconds=10, wall_seconds=20), "''")
    must_say(await arena.python("print('done')", stdin=b"x" * 4_000_000), "done")


async def endless(arena: Arena) -> None:
    busy = await arena.python("while True: pass", cpu_seconds=0.3, wall_seconds=60)
    must_end(busy, End.timeout_cpu)
    must_end(await arena.python("import time; time.sleep(5)", wall_seconds=0.3), End.timeout_wall)
    must_end(
        await arena.python("import time; time.sleep(100)", idle_seconds=0.3, wall_seconds=60),
        End.timeout_idle,
    )


async def held_pipe(arena: Arena) -> None:
    async def hold(box: Box) -> None:
        result = await asyncio.wait_for(
            box.exec(["sh", "-c", "echo early; setsid sleep 100 & sleep 100"], wall_seconds=0.5), 60
        )
        must_end(result, End.timeout_wall)
        must(result.stdout == b"early\n", result.stdout)
        await alone(box)

    await arena.with_box(hold)


async def daemons(arena: Arena) -> None:
    async def leave(box: Box) -> None:
        must_say(await python(box, _DAEMONS), "left")
        await alone(box)

    await arena.with_box(leave)


async def stubborn(arena: Arena) -> None:
    async def stop(box: Box) -> None:
        must_end(await python(box, _STUBBORN, wall_seconds=0.5), End.timeout_wall)
        await alone(box)

    await arena.with_box(stop)


async def zombies(arena: Arena) -> None:
    must_say(await arena.python(_ZOMBIES, cpu_seconds=200, wall_seconds=400), "0")


ROWS = (
    Attack(1, "fork bomb that ignores SIGTERM and leaves its session", fork_bomb),
    Attack(2, "more processes than allowed", bounded_forks),
    Attack(3, "memory of every kind", memory),
    Attack(4, "filling /tmp, /dev/shm and the home", fill),
    Attack(5, "reading more than the memory holds", page_cache),
    Attack(6, "descriptors of every kind", descriptors),
    Attack(7, "a full disk, a sparse terabyte, fallocate", disk),
    Attack(8, "every inode", inodes),
    Attack(9, "output floods, binary and without line ends", flood),
    Attack(10, "two full pipes at once", undrained),
    Attack(11, "reading stdin without end, ignoring a large one", stdin),
    Attack(12, "never ending: busy, asleep, idle", endless),
    Attack(13, "a grandchild that holds the pipe past the deadline", held_pipe),
    Attack(14, "daemons that outlive their command", daemons),
    Attack(15, "stopping itself, ignoring every signal", stubborn),
    Attack(32, "a storm of orphans", zombies),
)
