"""The filter of system calls: which error a refused one gives, so that it is the filter that refused it."""

# ruff: noqa: E501  (attack programs read better unbroken)

import errno
import os

import pytest

from tests.integration.sandbox.conftest import Lab, listing, said
from tiltyard.sandbox import ExecOutcome

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers and tables of calls are x86_64's"),
]

SYSCALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "done"
"""
NUMBERS = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "unshare": 272, "setns": 308, "chroot": 161, "open_tree": 428, "fsopen": 430,
    "ptrace": 101, "process_vm_readv": 310, "pidfd_getfd": 438, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321,
    "perf_event_open": 298, "io_uring_setup": 425, "userfaultfd": 323, "syslog": 103, "reboot": 169, "kexec_load": 246,
    "init_module": 175, "swapon": 167, "settimeofday": 164, "open_by_handle_at": 304, "acct": 163, "quotactl": 179, "iopl": 172,
    "fanotify_init": 300, "kcmp": 312, "move_pages": 279,
}  # fmt: skip


def test_dangerous_system_calls_are_refused_by_the_filter(lab: Lab) -> None:
    code = SYSCALL + f"for name, number in {NUMBERS}.items(): print(name, call(number, 0, 0, 0, 0, 0, 0))"
    found = said(lab.exec(["python3", "-c", code])).splitlines()
    assert found == [f"{name} EPERM" for name in NUMBERS]


def test_new_namespaces_cannot_be_cloned(lab: Lab) -> None:
    flags = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}
    code = (
        SYSCALL
        + f"print([call(56, flag | 17, 0, 0, 0, 0) for flag in {list(flags.values())}], call(435, 0, 88))"
    )
    assert said(lab.exec(["python3", "-c", code])) == "['EPERM', 'EPERM', 'EPERM', 'EPERM'] ENOSYS"


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
