"""The warm interpreter: the same results as a cold start, and nothing carried from one copy to the next."""

# ruff: noqa: E501  (programs read better unbroken)

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
from pathlib import Path

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab, alive, payload_uid, said
from tiltyard.sandbox import Box, ExecOutcome, ExecResult, WarmPool
from tiltyard.sandbox.native.toolchain import current_helpers, is_warm

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(
        not is_warm(current_helpers()), reason="no warm interpreter: Python's headers are absent"
    ),
]

COLD = {"LANG": "C.UTF-8"}
"""An environment that changes nothing, and that rules a copy out."""

PROGRAMS = {
    "prints": "print('out'); import sys; print('err', file=sys.stderr)",
    "exit code": "raise SystemExit(3)",
    "exit words": "raise SystemExit('words')",
    "exit none": "import sys; sys.exit()",
    "exit large": "import sys; sys.exit(259)",
    "raises": "def f():\n    raise ValueError('no')\nf()",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "syntax": "x = (",
    "encoding": "# coding: latin-1\nprint('\\xe4')",
    "aborts": "import os; os.abort()",
    "killed": "import os; os.kill(os.getpid(), 15)",
    "os._exit": "import os; print('lost'); os._exit(4)",
    "identity": "import os, sys; print(__name__, __file__, sys.argv, os.getcwd(), sorted(os.environ), sys.path, sys.flags)",
    "words": "import sys; print(sys.argv, sys.orig_argv[1:])",
    "variables": "import os, subprocess as s; os.environ['A'] = 'b'; os.environ.pop('USER'); print(os.environ.copy(), s.run(['env'], capture_output=True).stdout)",
    "globals": "print(sorted(globals()), __spec__, __builtins__ is __import__('builtins'))",
    "stdin": "import sys; print(sys.stdin.read(), sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors)",
    "input": "print(input())",
    "atexit": "import atexit; atexit.register(print, 'bye'); print('hi')",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()",
    "signals": "import signal; print([(s, str(signal.getsignal(s))) for s in (2, 13, 15, 17, 25)])",
    "children": "import subprocess; print(subprocess.run(['echo', 'x'], capture_output=True, check=True).stdout)",
    "main": "import sys; print(sys.modules['__main__'].__dict__ is globals(), sys.executable.endswith('python3'))",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "hook": "import sys; sys.excepthook = lambda *a: print('hooked', a[0]); 1/0",
    "limits": "import resource as r; print([r.getrlimit(k) for k in (r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE, r.RLIMIT_CPU)])",
    "group": "import os; print(os.getuid(), os.getgroups(), os.getsid(0) == os.getpid(), os.getppid(), os.umask(0))",
    "pool": "import multiprocessing as m\nif __name__ == '__main__': print(m.get_context('fork').Pool(2).map(abs, [-1, 2]))",
}


def facts(result: ExecResult) -> tuple[object, ...]:
    return result.outcome, result.exit_code, result.signal, result.stdout, result.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_copy_ends_and_speaks_as_a_cold_start_does(lab: Lab, name: str) -> None:
    options = {"stdin": b"given\n"}
    warm = lab.python(PROGRAMS[name], **options)
    cold = lab.python(PROGRAMS[name], env=COLD, **options)
    assert facts(warm) == facts(cold)


def test_a_copy_is_what_ran(lab: Lab) -> None:
    code = "print(open('/proc/self/cmdline').read().split('\\0')[3])"
    assert said(lab.python(code)) == "/mnt/zygote.py"
    assert said(lab.python(code, env=COLD)) == "main.py"


@pytest.mark.parametrize("environment", [{}, COLD], ids=["warm", "cold"])
def test_signals_that_the_owner_ignores_are_not_ignored_in_a_box(
    lab: Lab, environment: dict[str, str]
) -> None:
    async def interrupt_itself() -> ExecResult:
        async with WarmPool(size=1, limits=LIMITS) as pool, pool.acquire() as box:
            await box.write("main.py", "import os; os.kill(os.getpid(), 2); print('ignored')")
            return await box.exec(["python3", "-I", "-S", "main.py"], env=environment)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    try:
        result = lab.run(interrupt_itself())
    finally:
        signal.signal(signal.SIGINT, before)
    assert b"KeyboardInterrupt" in result.stderr, result


def test_no_helper_of_a_copy_is_left_to_a_process_that_does_not_reap(lab: Lab) -> None:
    async def run_many() -> list[str]:
        async with WarmPool(size=4, limits=LIMITS) as pool:
            for _ in range(40):
                async with pool.acquire(timeout=60) as box:
                    assert (await box.exec(["python3", "-I", "-S", "main.py"], files={"main.py": "1"})).ok
            return dead_children("python3")

    be_subreaper(True)
    try:
        assert lab.run(run_many()) == []
    finally:
        be_subreaper(False)


def be_subreaper(wanted: bool) -> None:
    """Orphans below this process come to it, which reaps none: as in a container whose PID 1 is a service."""
    PR_SET_CHILD_SUBREAPER = 36
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0


def dead_children(name: str) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(") ")
            if command == name and rest.split()[:2] == ["Z", str(os.getpid())]:
                found.append(entry.name)
    return found


def test_a_missing_script_is_told(lab: Lab) -> None:
    result = lab.exec(["python3", "-I", "-S", "absent.py"])
    assert result.exit_code == 2
    assert b"can't open file '/box/absent.py': [Errno 2] No such file or directory" in result.stderr


def test_a_script_of_any_size_and_with_arguments_is_run_whole(lab: Lab) -> None:
    script = "#" * 200_000 + "\nimport sys; print(sys.argv, sys.orig_argv[3:])"
    argv = ["python3", "-I", "-S", "/tmp/large.py", "a", "\u00e9"]
    assert said(lab.exec(argv, files={"/tmp/large.py": script})) == f"{argv[3:]} {argv[3:]}"


PLANT = """
import builtins, gc, json, os, random, re, sys, types
json.loads = re.compile = builtins.open = lambda *a, **k: "planted"
builtins.planted = sys.planted = types.planted = True
sys.modules["planted"] = json
os.environ["PLANTED"] = "1"
sys.path.insert(0, "/tmp")
for place in ("/tmp", "/box", "/dev/shm"):
    os.close(os.open(place + "/planted.py", os.O_CREAT | os.O_WRONLY))
if not os.fork():
    os.setsid()
    while True: os.sched_yield()
for number in range(3, 100):
    try: os.write(number, b"attack")
    except OSError: pass
for target in gc.get_objects():
    if isinstance(target, dict) and "serve" in target:
        try: target["serve"](4)
        except Exception: pass
for pid in (0, 1, 2, os.getppid()):
    try: os.kill(pid, 0) if pid != 0 else None
    except OSError: pass
print("done")
"""
LOOK = """
import builtins, json, os, random, re, sys, types
def state(pid):
    try: return open(f"/proc/{pid}/stat").read().rpartition(") ")[2][0]
    except OSError: return "X"
print(json.loads("[1]"), re.compile("a").pattern, open("/etc/hostname").read().strip())
print(hasattr(builtins, "planted"), hasattr(sys, "planted"), hasattr(types, "planted"), "planted" in sys.modules)
print("PLANTED" in os.environ, "/tmp" in sys.path, [os.listdir(p) for p in ("/tmp", "/dev/shm")])
print(sum(state(name) not in "ZX" for name in os.listdir("/proc") if name.isdigit()))
"""


def test_the_next_copy_sees_nothing_that_the_last_one_planted(lab: Lab) -> None:
    expected = "[1] a box\nFalse False False False\nFalse False [[], []]\n2"
    for _ in range(6):
        assert lab.python(PLANT, wall_seconds=20).outcome is not ExecOutcome.infra_error
        assert said(lab.python(LOOK)) == expected


def test_random_numbers_differ_from_copy_to_copy(lab: Lab) -> None:
    code = "import os, random, uuid; print(random.random(), uuid.uuid4(), os.urandom(8).hex())"
    draws = [said(lab.python(code)).split() for _ in range(6)]
    assert all(len(set(column)) == 6 for column in zip(*draws, strict=True))


def test_a_copy_that_is_late_is_killed_wherever_it_was(lab: Lab) -> None:
    """Deadlines that fall into every moment of the copy's way into its box."""

    async def hurry(box: Box) -> ExecOutcome:
        seconds = 0.0005 * (1 + int(box.id.split("-")[2]) % 40)
        result = await box.exec(
            ["python3", "-I", "-S", "m.py"], files={"m.py": "while True: pass"}, wall_seconds=seconds
        )
        assert alive(payload_uid(box)) == []
        return result.outcome

    assert {lab.with_box(hurry) for _ in range(60)} == {ExecOutcome.timeout_wall}


def zygotes() -> set[int]:
    """Warm interpreters of this process's pools."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    below = [Path(f"/proc/{host}/task/{host}/children").read_text().split() for host in own]
    found = set()
    for pid in itertools.chain.from_iterable(below):
        with contextlib.suppress(OSError):
            if b"/mnt/zygote.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(int(pid))
    return found


def test_without_its_warm_interpreter_a_pool_starts_python_cold(lab: Lab) -> None:
    async def lose() -> tuple[bytes, bytes]:
        before = zygotes()
        async with WarmPool(size=2, limits=LIMITS) as pool:
            async with pool.acquire() as box:
                warm = await box.exec(["python3", "-I", "-S", "m.py"], files={"m.py": "print(1)"})
            (zygote,) = zygotes() - before
            os.kill(zygote, signal.SIGKILL)
            await asyncio.sleep(0.2)
            async with pool.acquire() as box:
                cold = await box.exec(["python3", "-I", "-S", "m.py"], files={"m.py": "print(2)"})
            return warm.stdout, cold.stdout

    assert lab.run(lose()) == (b"1\n", b"2\n")
