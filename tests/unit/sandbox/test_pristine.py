"""Fingerprints: equal for boxes that nobody used, different for each thing that a payload can leave."""

import pytest

from tiltyard.sandbox.pristine import fingerprint

CLEAN = """= /proc/self/mountinfo
36 35 0:98 / / rw,nosuid - overlay box rw
40 36 0:99 / /proc ro - proc proc rw
= /proc/net/sockstat
sockets: used 2
TCP: inuse 0 orphan 0 tw 3 alloc 9 mem 1
UDP: inuse 0 mem 0
= /proc/net/sockstat6
TCP6: inuse 0
= /proc/net/unix
Num       RefCount
= /proc/sysvipc/shm
       key
= /proc/sysvipc/msg
       key
= /proc/sysvipc/sem
       key
= /proc/sys/kernel/hostname
box
= /box
= /tmp
= /dev/shm
= /proc
1
"""


def test_numbers_of_mounts_do_not_matter() -> None:
    other = (
        CLEAN.replace("36 35 0:98", "91 90 0:12")
        .replace("alloc 9 mem 1", "alloc 7 mem 0")
        .replace("40 36 0:99", "92 91 0:13")
    )
    assert fingerprint(other) == fingerprint(CLEAN)
    assert fingerprint(other).digest == fingerprint(CLEAN).digest
    assert fingerprint(CLEAN).blemishes() == []


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("mounts", "/proc ro", "/proc rw"),
        ("mounts", "40 36 0:99 / /proc ro - proc proc rw\n", ""),
        ("sockets", "TCP: inuse 0", "TCP: inuse 1"),
        ("sockets", "TCP6: inuse 0", "TCP6: inuse 2"),
        ("sockets", "= /proc/sysvipc/shm", "0: 2 0 10000 @name\n= /proc/sysvipc/shm"),
        ("ipc", "= /proc/sysvipc/msg", "   1 2\n= /proc/sysvipc/msg"),
        ("files", "= /tmp\n", "= /tmp\nleft\n"),
        ("files", "= /dev/shm\n", "= /dev/shm\n\udcff\n"),
        ("processes", "= /proc\n1\n", "= /proc\n1\n2\n"),
        ("hostname", "box\n= /box", "evil\n= /box"),
    ],
)
def test_each_thing_that_may_be_left_is_seen(part: str, old: str, new: str) -> None:
    assert old in CLEAN
    now = fingerprint(CLEAN.replace(old, new))
    (line,) = fingerprint(CLEAN).drift(now)
    assert line.startswith(f"{part}: ")
    assert fingerprint(CLEAN).digest != now.digest


def test_what_no_fresh_box_shows_is_a_blemish_without_a_comparison() -> None:
    assert fingerprint(CLEAN.replace("= /tmp\n", "= /tmp\nleft\n")).blemishes() == ["files: ('/tmp/left',)"]
