"""Attacks on the file system and the kernel's files."""

# ruff: noqa: E501  (attack programs read better unbroken)

import errno

import pytest

from tests.integration.sandbox.conftest import Lab, said

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    "path",
    ["/proc/sys/kernel/panic", "/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
     "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname"],
)  # fmt: skip
def test_kernel_settings_are_read_only(lab: Lab, path: str) -> None:
    code = f"try: open({path!r}, 'w'); print('open')\nexcept OSError as error: print(error.errno)"
    assert int(said(lab.python(code))) in (errno.EROFS, errno.EACCES, errno.ENOENT)


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
