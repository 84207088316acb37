"""Rows 29 to 45, but for those of the kernel: attacks on whoever handles a box, and on who uses it next."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import gzip
import io
import tarfile

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import (
    ArchiveRefused,
    FileFault,
    InvalidExec,
    InvalidPath,
    SandboxBusy,
    SandboxError,
)
from tiltyard.sandbox.pristine import fingerprint
from tiltyard.sandbox.result import ExecOutcome as End

from .attack import (
    WENT,
    Arena,
    Attack,
    Breach,
    Unattackable,
    must,
    must_end,
    must_say,
    python,
    usable,
    went,
)

_PLANT = """
import os, socket
for path in ("/box/planted", "/tmp/planted", "/dev/shm/planted", "/box/.bashrc"):
    try: open(path, "w").write("planted")
    except OSError: pass
os.system("ipcmk -M 4096 -Q -S 1 >/dev/null 2>&1")
if not os.fork():
    os.setsid(); s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen(); __import__("time").sleep(100)
"""
_SEEDS = "import os, random; print(os.urandom(8).hex(), random.random(), hex(id(os)))"
_TEMPLATES = "template<int N> struct T { typedef typename T<N-1>::type type; T<N+1> *p; };\ntemplate<> struct T<0> { typedef int type; };\nint main() { return sizeof(T<100000>::type); }\n"


_STEAL = """
import os, time
for _ in range(5):
    if not os.fork():
        if not os.fork(): os._exit(7)
        os._exit(7)
    os.wait()
time.sleep(.05)
"""
_LOOK = """
import os, socket
print(os.listdir("/box"), os.listdir("/tmp"), os.listdir("/dev/shm"))
s = socket.socket(); s.bind(("127.0.0.1", 8080))
for name in ("/proc/net/dev", "/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"):
    try: print(open(name).read())
    except OSError: pass
"""
_TRAFFIC = """
import os, socket
open("/box/planted", "w"); open("/tmp/planted", "w"); open("/dev/shm/planted", "w")
s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen(); c = socket.create_connection(("127.0.0.1", 8080)); s.accept()
os.system("ipcmk -M 4096 -Q -S 1 >/dev/null 2>&1")
"""


async def refused(work: object, *kinds: type[Exception]) -> None:
    try:
        await work  # type: ignore[misc]
    except kinds:
        return
    raise Breach(f"it was not refused with one of {[kind.__name__ for kind in kinds]}")


async def artefacts(arena: Arena) -> None:
    async def collect(box: Box) -> None:
        must(
            (
                await box.exec(
                    [
                        "sh",
                        "-c",
                        "ln -s /etc/passwd link; ln -s /etc folder; mkfifo fifo; echo kept > kept; ln kept hard",
                    ]
                )
            ).ok,
            "not planted",
        )
        for path in ("link", "folder/passwd", "fifo"):
            await refused(box.read(path), FileFault)
        with tarfile.open(fileobj=io.BytesIO(await box.tar_out())) as archive:
            must(archive.getnames() == ["hard", "kept"], archive.getnames())

    await arena.with_box(collect)


async def paths(arena: Arena) -> None:
    async def touch(box: Box) -> None:
        for path in (
            "../tmp/x",
            "../x",
            "/etc/x",
            "a/../../x",
            "a\0b",
            "\ud800",
            "x" * 300,
            "a/" * 3000 + "b",
            "",
        ):
            await refused(box.write(path, b"x"), InvalidPath)
        await box.write("~", b"x")
        must([entry.name for entry in await box.list()] == ["~"], "another name was made")

    await arena.with_box(touch)


def _tar(**member: object) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        info = tarfile.TarInfo("x")
        for name, value in member.items():
            setattr(info, name, value)
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    return into.getvalue()


async def archives(arena: Arena) -> None:
    bad = (
        _tar(name="../x"), _tar(name="/etc/x"), _tar(type=tarfile.SYMTYPE, linkname="/etc"), _tar(type=tarfile.LNKTYPE, linkname="/etc/passwd"),
        _tar(type=tarfile.CHRTYPE, devmajor=1, devminor=1), gzip.compress(_tar(size=50_000_000)), gzip.compress(_tar()[:512] * 20_001),
    )  # fmt: skip

    async def unpack(box: Box) -> None:
        for archive in bad:
            await refused(box.tar_in(archive, max_bytes=1_000_000), ArchiveRefused)
        must(await box.list() == [], "something was written")

    await arena.with_box(unpack)


async def exit_code(arena: Arena) -> None:
    async def end(box: Box) -> None:
        for code in (0, 1, 42, 255):
            result = await python(box, _STEAL + f"os._exit({code})")
            must(result.exit_code == code, (code, result.exit_code))

    await arena.with_box(end)


async def supervisor(arena: Arena) -> None:
    async def eat(box: Box) -> None:
        for _ in range(3):
            result = await python(
                box,
                "import os\nwhile True:\n  try: os.fork(); x = bytearray(20_000_000)\n  except (OSError, MemoryError): pass",
                cpu_seconds=2,
                wall_seconds=30,
            )
            must(result.outcome is not End.infra_error, f"the supervisor died with it: {result.detail}")
            must(not await went(box, result), WENT)
        await usable(box)

    await arena.with_box(eat)


async def seeds(arena: Arena) -> None:
    async with arena.pool.acquire_many(2, timeout=60) as boxes:
        said = [(await python(box, _SEEDS)).stdout.split() for box in boxes]
    must(
        all(len(words) == 3 for words in said) and said[0][0] != said[1][0] and said[0][1] != said[1][1], said
    )


async def verdicts(arena: Arena) -> None:
    """A graded program writes what a grader would look for; the grader's own box shows none of it."""
    async with arena.pool.acquire_many(2, timeout=60) as (policy, grader):
        plant = "open('/box/verdict.json', 'w').write('passed'); open('/box/conftest.py', 'w').write(''); import os; os._exit(0)"
        must((await python(policy, plant)).ok, "not planted")
        must(await grader.list() == [], "the grader's box shows the policy's files")
        environment = await grader.exec(["env"])
        must(b"TILTYARD" not in environment.stdout, environment.stdout)


async def bleeding(arena: Arena) -> None:
    async def dirty(box: Box) -> None:
        pristine = fingerprint(await box.survey())
        await python(box, _PLANT)
        await box.reset()
        drift = pristine.drift(fingerprint(await box.survey()))
        must(not drift, drift)

    await arena.with_box(dirty)
    seen: set[bytes] = set()
    for _ in range(16):  # more than a pool keeps to make boxes of, so that some are used again
        async with arena.pool.acquire(timeout=arena.patience) as box:
            seen.add((await python(box, _LOOK)).stdout)
            must((await python(box, _TRAFFIC)).ok, "not planted")
    must(len(seen) == 1, seen)


async def killed_owner(arena: Arena) -> None:
    raise Unattackable(
        "its owner is this process; `tests/chaos/test_sandbox_leaks.py` kills one and counts what is left"
    )


async def cancels(arena: Arena) -> None:
    async def hold() -> None:
        async with arena.pool.acquire(timeout=arena.patience) as box:
            await box.exec(["sleep", "100"], wall_seconds=200)

    for delay in (0.0, 0.001, 0.02):
        tasks = [asyncio.ensure_future(hold()) for _ in range(100)]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    try:
        async with arena.pool.acquire_many(arena.pool.size, timeout=arena.patience) as boxes:
            for box in boxes:
                await usable(box)
            must((await arena.pool.stats()).lent == arena.pool.size, await arena.pool.stats())
    except SandboxBusy as busy:
        raise Breach(f"boxes were lost: {busy}") from busy


async def long_arguments(arena: Arena) -> None:
    async def send(box: Box) -> None:
        await refused(box.exec(["echo", "x" * 5_000_000]), InvalidExec)
        await refused(box.exec(["true"], env={"X": "x" * 5_000_000}), InvalidExec)
        await refused(box.exec(["true"], files={"big": b"x" * (17 << 20)}), SandboxError)
        must_say(await box.exec(["sh", "-c", "wc -c < big"], files={"big": b"x" * 10_000_000}), "10000000")

    await arena.with_box(send)


async def compiler(arena: Arena) -> None:
    async def build(box: Box) -> None:
        if not (await box.exec(["sh", "-c", "command -v g++"])).ok:
            raise Unattackable("the image has no g++")
        result = await box.exec(
            ["g++", "-ftemplate-depth=1000000", "bomb.cc"],
            files={"bomb.cc": _TEMPLATES},
            cpu_seconds=5,
            output_bytes=100_000,
        )
        must_end(
            result,
            End.oom,
            End.timeout_cpu,
            End.timeout_wall,
            End.output_limit,
            End.nonzero,
            End.disk_limit,
            End.signalled,
        )
        await usable(box)

    await arena.with_box(build)


ROWS = (
    Attack(29, "links, FIFOs and hard links in what is collected", artefacts),
    Attack(30, "paths that lead out or cannot be", paths),
    Attack(31, "archives that lead out, hold devices, or are bombs", archives),
    Attack(33, "children that end while the exit code is taken", exit_code),
    Attack(34, "killing the supervisor by memory", supervisor),
    Attack(36, "the same seeds in two boxes", seeds),
    Attack(39, "forging a verdict for the grader", verdicts),
    Attack(40, "leaving state for whoever comes after a reset", bleeding),
    Attack(41, "the owner killed in the middle", killed_owner),
    Attack(42, "a hundred cancels at once", cancels),
    Attack(44, "arguments and files that are too large", long_arguments),
    Attack(45, "a compile bomb", compiler),
)
