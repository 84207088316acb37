"""Files of a box, touched from outside."""

import errno

import pytest

from tests.integration.sandbox.conftest import Lab, said
from tiltyard.sandbox import Box, FileFault, FileTooLarge, InvalidPath

pytestmark = pytest.mark.sandbox


def test_what_is_written_is_read_back_and_belongs_to_the_payload(lab: Lab) -> None:
    async def round_trip(box: Box) -> None:
        data = bytes(range(256)) * 20_000
        await box.write("deep/er/file.bin", data)
        assert await box.read("/box/deep/er/file.bin", max_bytes=len(data)) == data
        owner = await box.exec(["stat", "-c", "%u %a", "deep", "deep/er/file.bin"])
        assert said(owner) == "1000 755\n1000 644"
        await box.write("deep/er/file.bin", "short")
        assert await box.read("deep/er/file.bin") == b"short"
        await box.write("/tmp/empty", b"")
        assert await box.read("/tmp/empty") == b""

    lab.with_box(round_trip)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "a\0b",
        "../out",
        "a/../../out",
        "/etc/passwd",
        "/box/../etc/x",
        "dir/",
        "\ud800",
        "x" * 300,
        "a/" * 3000 + "b",
    ],
)
def test_paths_that_escape_or_cannot_be_are_refused(lab: Lab, path: str) -> None:
    async def touch(box: Box) -> None:
        with pytest.raises(InvalidPath):
            await box.write(path, b"")
        with pytest.raises(InvalidPath):
            await box.read(path)

    lab.with_box(touch)


@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/1/environ", "/usr/bin/env", "../etc/passwd"])
def test_a_symlink_is_never_followed_on_the_way_out(lab: Lab, target: str) -> None:
    async def read(box: Box) -> None:
        assert (await box.exec(["ln", "-s", target, "result.txt"])).ok
        assert (await box.exec(["ln", "-s", "/etc", "folder"])).ok
        for path in ("result.txt", "folder/passwd"):
            with pytest.raises(FileFault, match="symlink") as caught:
                await box.read(path)
            assert caught.value.error == errno.ELOOP

    lab.with_box(read)


def test_a_symlink_is_never_followed_on_the_way_in(lab: Lab) -> None:
    async def write(box: Box) -> None:
        assert (await box.exec(["sh", "-c", "echo kept > kept; ln -s kept main.py; ln -s /tmp folder"])).ok
        for path in ("main.py", "folder/x"):
            with pytest.raises(FileFault):
                await box.write(path, "planted")
        assert await box.read("kept") == b"kept\n"

    lab.with_box(write)


def test_only_regular_files_are_read_and_nothing_hangs(lab: Lab) -> None:
    async def read(box: Box) -> None:
        assert (await box.exec(["sh", "-c", "mkfifo fifo; mkdir folder"])).ok
        for path, error in (("fifo", errno.EINVAL), ("folder", errno.EISDIR), ("absent", errno.ENOENT)):
            with pytest.raises(FileFault) as caught:
                await box.read(path)
            assert caught.value.error == error

    lab.with_box(read)


def test_a_sparse_terabyte_is_refused_by_its_size(lab: Lab) -> None:
    async def read(box: Box) -> None:
        result = await box.exec(["truncate", "-s", "20M", "sparse"])
        assert result.ok
        with pytest.raises(FileTooLarge, match="20971520"):
            await box.read("sparse", max_bytes=1000)

    lab.with_box(read)


def test_a_file_that_the_payload_locked_is_a_typed_error(lab: Lab) -> None:
    async def write(box: Box) -> None:
        assert (await box.exec(["sh", "-c", "mkdir shut; touch shut/f; chmod 000 shut"])).ok
        with pytest.raises(FileFault) as caught:
            await box.write("shut/f", b"")
        assert caught.value.error == errno.EACCES

    lab.with_box(write)
