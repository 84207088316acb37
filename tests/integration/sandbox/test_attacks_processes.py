"""Attacks on PID 1, on other processes and on the kernel interface."""

# ruff: noqa: E501  (attack programs read better unbroken)

import asyncio
import errno
import os

import pytest

from tests.integration.sandbox.conftest import Lab, listing, said
from tiltyard.sandbox import Box, ExecOutcome

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
        assert b"Error: [Errno" in result.stderr  # nobody is left whom it may signal
        assert (await box.exec(["true"])).ok

    lab.with_box(attack)


def test_no_process_of_the_host_or_of_another_box_can_be_seen(lab: Lab) -> None:
    async def look() -> list[str]:
        async with lab.pool.acquire_many(2) as (one, other):
            running = asyncio.create_task(other.exec(["sleep", "0.5"]))
            await asyncio.sleep(0.2)
            seen = await one.exec(["sh", "-c", "cd /proc; echo [0-9]*"])
            await running
            return said(seen).split()

    assert len(lab.run(look())) == 2  # its PID 1 and itself


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
