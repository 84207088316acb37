"""What of a container's survey is compared, and what its memory limit is seen to have done."""

import os
from pathlib import Path

import pytest

from tiltyard.sandbox.docker import memory
from tiltyard.sandbox.docker.survey import comparable
from tiltyard.sandbox.pristine import fingerprint

_SURVEY = """= /proc/self/mountinfo
414 333 0:75 / / ro - overlay overlay rw,lowerdir=/d/overlay2/l/{short}:/d/l/KNKV3LOVF3YQ2AVZJ5FSBI2EZA,upperdir=/d/{id}/diff
437 414 254:0 /run/tiltyard/docker/126-32-i_28/{number}//deleted /.tilt/socket ro - ext4 /dev/vda rw
17 8 0:16 / /.tilt/init ro  - 9p none ro,trans=fd,rfdno={number},wfdno={number},aname=/
= /proc/net/unix
Num       RefCount Protocol Flags    Type St Inode Path
0000000{number}: 00000003 00000000 00000000 0001 03 643{number}
0000001{number}: 00000003 00000000 00000000 0001 03 644{number} /run/tiltyard/docker/126-32-i_28/{number}/call
{planted}= /proc/sysvipc/shm
= /box
= /proc
1
"""  # noqa: E501


def _survey(number: int, planted: str = "") -> str:
    short, name = f"{number}" * 26, f"{number}" * 64
    return comparable(_SURVEY.format(number=number, short=short, id=name, planted=planted))


def test_two_fresh_containers_are_alike_and_without_a_blemish() -> None:
    one, other = fingerprint(_survey(1)), fingerprint(_survey(2))
    assert one == other
    assert one.blemishes() == []


@pytest.mark.parametrize(
    "planted",
    [
        "00000020: 00000003 00000000 00000000 0001 03 700\n",
        "00000020: 00000002 00000000 00010000 0001 01 700 @name\n",
        "00000020: 00000002 00000000 00000000 0002 01 700 /tmp/call\n",
    ],
)
def test_a_socket_that_is_not_ours_is_told(planted: str) -> None:
    assert fingerprint(_survey(1)).drift(fingerprint(_survey(2, planted)))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        ("low 0\nhigh 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n", 0),
        ("nothing 1\n", None),
    ],
)
def test_the_kernels_count_of_kills_is_read_in_both_hierarchies(
    tmp_path: Path, text: str, count: int | None
) -> None:
    (tmp_path / "file").write_text(text)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert memory.kills(descriptor) == count
    finally:
        os.close(descriptor)
    assert memory.kills(-1) is None


def test_a_process_that_is_gone_has_no_cgroup_to_ask() -> None:
    assert memory.open_kills(2**22 + 1) == -1
