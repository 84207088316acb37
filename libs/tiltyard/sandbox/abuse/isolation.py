"""Rows 16 to 28, 35, 37, 38 and 43: attacks on the kernel, the host, PID 1, the network and other boxes."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import platform
import secrets
import socket

from tiltyard.sandbox.backend import Box
from tiltyard.sandbox.errors import SandboxGone
from tiltyard.sandbox.result import ExecOutcome as End

from .attack import Arena, Attack, Breach, Unattackable, must, must_end, must_say, python, usable

_TRY = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*numbers):
    return libc.syscall(*map(ctypes.c_long, numbers)) != -1
def attempt(name, act):
    try:
        if act() is not False: return not print(name, end=" ")
    except (OSError, ValueError): pass
"""
_CALLS = {  # x86_64
    21: {"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428, "fsopen": 430},
    24: {"keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323,
         "kexec_load": 246, "reboot": 169, "init_module": 175, "syslog": 103, "swapon": 167, "open_by_handle_at": 304, "acct": 163},
}  # fmt: skip
_PROC = ("cmdline", "kallsyms", "keys", "key-users", "timer_list", "kcore", "sched_debug", "config.gz")


async def _nothing(arena: Arena, attempts: str) -> None:
    """A program of attempts, each of which prints its name when it succeeds."""
    must_say(await arena.exec(["python3", "-c", _TRY + attempts]), "")


def _refused(row: int) -> str:
    calls = "\n".join(
        f"attempt({name!r}, lambda: call({number}, 0, 0, 0, 0, 0, 0))" for name, number in _CALLS[row].items()
    )
    return calls


def _x86() -> None:
    if platform.machine() != "x86_64":
        raise Unattackable(f"its system call numbers are x86_64's, and this machine is {platform.machine()}")


async def signals(arena: Arena) -> None:
    async def shoot(box: Box) -> None:
        await python(
            box,
            "import os\nfor target in (1, os.getppid(), -1):\n  for number in (15, 9, 19):\n    try: os.kill(target, number)\n    except OSError: pass",
        )
        try:
            await usable(box)
        except SandboxGone as gone:
            raise Breach(f"its supervisor was hit: {gone}") from gone

    await arena.with_box(shoot)


async def memory_of_init(arena: Arena) -> None:
    await _nothing(
        arena,
        """
attempt("mem", lambda: open("/proc/1/mem", "rb").read(1))
attempt("environ", lambda: open("/proc/1/environ", "rb").read().strip(bytes(1)) or False)
def gained(path):  # by opening it, more than its own file or folder can be had by name
    os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try: return not os.access(os.readlink(path), os.R_OK)
    except OSError: return True
for number in range(128):
    attempt(f"fd {number}", lambda: gained(f"/proc/1/fd/{number}"))
attempt("ptrace", lambda: libc.ptrace(16, 1, 0, 0) == 0)
attempt("vm", lambda: call(310, 1, 0, 0, 0, 0, 0) and call(311, 1, 0, 0, 0, 0, 0))
""",
    )


async def proc_links(arena: Arena) -> None:
    await _nothing(
        arena,
        """
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        attempt("root" + pid, lambda: os.listdir(f"/proc/{pid}/root/"))
        attempt("exe" + pid, lambda: open(f"/proc/{pid}/exe", "r+b"))
attempt("self", lambda: open("/proc/self/exe", "r+b"))
for fd in range(3, 256): attempt(f"descriptor {fd}", lambda: os.fstat(fd))
""",
    )


async def kernel_files(arena: Arena) -> None:
    await _nothing(
        arena,
        """
for path in ("/proc/sys/kernel/panic", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
             "/proc/sys/vm/drop_caches", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.procs"):
    attempt(path, lambda: open(path, "r+"))
attempt("sys", lambda: open("/sys/x", "w"))
""",
    )


async def leaks(arena: Arena) -> None:
    code = f"""
for name in {_PROC!r}:
    try: print(name if any(bytes(line).strip(b"0 \\n") for line in open("/proc/" + name, "rb").readlines()[:1000] if name != "kallsyms" or not line.startswith(b"0000000000000000")) else "", end="")
    except OSError: pass
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: said = open(f"/proc/{{pid}}/cmdline", "rb").read()
    except OSError: continue
    if b"/" in said.split(b"\\0")[0].replace(b"/tilt-init", b"") and int(pid) != os.getpid() and b"python" not in said: print(said, end="")
"""
    must_say(await arena.python(code), "")


async def namespaces(arena: Arena) -> None:
    _x86()
    await _nothing(
        arena,
        _refused(21)
        + """
for name, flag in dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000).items():
    attempt("unshare " + name, lambda: call(272, flag))
""",
    )


async def setuid(arena: Arena) -> None:
    await _nothing(
        arena,
        """
import subprocess
attempt("setuid", lambda: os.setuid(0))
attempt("setgroups", lambda: os.setgroups([0]))
attempt("privs", lambda: libc.prctl(39, 0, 0, 0, 0) != 1)  # PR_GET_NO_NEW_PRIVS
attempt("caps", lambda: int([l for l in open("/proc/self/status") if l.startswith("CapBnd")][0].split()[1], 16) != 0)
open("/box/su", "w").write("x"); os.chmod("/box/su", 0o4755)
attempt("root", lambda: os.getuid() == 0)
""",
    )


async def devices(arena: Arena) -> None:
    await _nothing(
        arena,
        """
import stat
attempt("mknod char", lambda: os.mknod("/box/c", stat.S_IFCHR | 0o666, os.makedev(1, 1)))
attempt("mknod block", lambda: os.mknod("/box/b", stat.S_IFBLK | 0o666, os.makedev(254, 0)))
for path in ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/loop0", "/dev/loop-control", "/dev/fuse", "/dev/sda", "/dev/vda"):
    attempt(path, lambda: open(path, "rb"))
""",
    )


async def calls(arena: Arena) -> None:
    _x86()
    await _nothing(
        arena,
        _refused(24)
        + """
for family, kind in ((40, 1), (38, 5), (17, 3)): attempt(f"socket {family}", lambda: socket.socket(family, kind))
""",
    )
    i386 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))
got = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
import os; print("i386" if got == os.getpid() else "", end="")
"""
    result = await arena.exec(["python3", "-c", i386])
    must(b"i386" not in result.stdout, result.stdout)


async def addresses(arena: Arena) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port, name = server.getsockname()[1], f"\0tiltyard-attack-{secrets.token_hex(4)}"
        abstract.bind(name)
        abstract.listen()
        await _nothing(
            arena,
            f"""
if attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect({name!r})): raise SystemExit
for family, address in ((2, ("127.0.0.1", {port})), (2, ("169.254.169.254", 80)), (2, ("10.0.0.1", 80)), (2, ("172.17.0.1", 2375)),
                        (2, ("192.168.0.1", 80)), (2, ("1.1.1.1", 53)), (10, ("fe80::1", 80)), (10, ("2606:4700::1111", 53))):
    probe = socket.socket(family); probe.settimeout(3)
    if attempt(address[0], lambda: probe.connect(address)): raise SystemExit  # one is enough
attempt("docker", lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"))
""",
        )


async def names(arena: Arena) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:  # a name server, as far as is asked
        server.bind(("127.0.0.1", 0))
        loop.add_reader(server, lambda: server.sendto(b"x", server.recvfrom(1)[1]))
        try:
            await _nothing(arena, _QUERIES.replace("PORT", str(server.getsockname()[1])))
        finally:
            loop.remove_reader(server)


_QUERIES = """
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); probe.settimeout(2)
if attempt("server", lambda: (probe.sendto(b"x", ("127.0.0.1", PORT)), probe.recv(1))): raise SystemExit  # one is enough
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); probe.settimeout(2)
attempt("query", lambda: (probe.sendto(b"x", ("8.8.8.8", 53)), probe.recv(1)))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
"""


async def same_port(arena: Arena) -> None:
    code = "import socket, time\na = socket.socket(); a.bind(('127.0.0.1', 8080)); a.listen()\nb = socket.socket(socket.AF_UNIX); b.bind('\\0name')\nsocket.create_connection(('127.0.0.1', 8080)); time.sleep(.3); print('served')"
    async with arena.pool.acquire_many(2, timeout=60) as boxes:
        for result in await asyncio.gather(*(box.exec(["python3", "-c", code]) for box in boxes)):
            must_say(result, "served")


async def connections(arena: Arena) -> None:
    code = "import socket\nheld = []\ntry:\n  s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(1000)\n  while len(held) < 5_000: held += [socket.create_connection(s.getsockname(), 1), s.accept()]\n  print('unbounded')\nexcept OSError: print('bounded')"

    async def storm(box: Box) -> None:
        must_say(await box.exec(["python3", "-c", code], cpu_seconds=30), "bounded")
        await usable(box)

    await arena.with_box(storm)


async def clocks(arena: Arena) -> None:
    await _nothing(
        arena,
        """
import time
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
attempt("boot", lambda: call(169, 0xfee1dead, 672274793, 0x1234567) if os.uname().machine == "x86_64" else False)
""",
    )


async def sight(arena: Arena) -> None:
    """A program that asks `nproc` how many threads to start must be told what its limit allows."""
    limit = max(1, round(arena.pool.limits.cpus))
    result = await arena.exec(["nproc"])
    if not result.ok:
        raise Unattackable("the image has no nproc")
    must(int(result.stdout) <= limit, f"nproc says {int(result.stdout)}, {limit} may be used")


async def terminal(arena: Arena) -> None:
    code = "import fcntl, termios, os\ntry: fcntl.ioctl(0, termios.TIOCSTI, b'x'); print('typed', end='')\nexcept OSError: pass"
    must_say(await arena.exec(["python3", "-c", code], tty=(24, 80)), "")


async def limits(arena: Arena) -> None:
    await _nothing(
        arena,
        """
import resource
attempt("nofile", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20)))
attempt("core", lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)))
attempt("nice", lambda: os.nice(-5))
attempt("fifo", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("lock", lambda: libc.mlockall(3) == 0 and len(bytearray(100 << 20)) > 0)
""",
    )
    result = await arena.python("import os; os.abort()")
    must_end(result, End.signalled)


ROWS = (
    Attack(16, "signals to PID 1, the parent, everyone", signals),
    Attack(17, "memory, descriptors and tracing of PID 1", memory_of_init),
    Attack(18, "ways out through /proc/PID/root and exe", proc_links),
    Attack(19, "writing kernel settings, sysrq, /sys, cgroup files", kernel_files),
    Attack(20, "what /proc tells of the host", leaks),
    Attack(21, "mounts and new namespaces", namespaces),
    Attack(22, "setuid programs, groups, capabilities", setuid),
    Attack(23, "making and opening devices", devices),
    Attack(24, "dangerous system calls, families and the 32-bit table", calls),
    Attack(25, "metadata, private and host addresses, docker's socket", addresses),
    Attack(26, "names, queries, raw packets", names),
    Attack(27, "one port and one abstract name in two boxes", same_port),
    Attack(28, "a flood of connections", connections),
    Attack(35, "setting the clock, rebooting", clocks),
    Attack(37, "CPUs that it sees and may not use", sight),
    Attack(38, "typing into the terminal that it was given", terminal),
    Attack(43, "raising limits and priorities, dumping core", limits),
)
