"""Folders and archives of a box, and what it uses, seen from outside."""

# ruff: noqa: E501  (programs read better unbroken)

import errno
import gzip
import io
import tarfile
from collections.abc import Callable

import pytest

from tests.integration.sandbox.conftest import LIMITS, Lab, said
from tiltyard.sandbox import ArchiveRefused, Box, EntryKind, FileFault, InvalidPath

pytestmark = pytest.mark.sandbox


def test_a_folder_is_listed_with_what_each_name_stands_for(lab: Lab) -> None:
    async def look(box: Box) -> None:
        assert await box.list() == []
        await box.write("file", b"12345", 0o600)
        await box.mkdir("deep/er", 0o750)
        assert (
            await box.exec(["sh", "-c", "ln -s /etc/passwd link; mkfifo fifo; touch -d @1000000000 file"])
        ).ok
        found = {entry.name: entry for entry in await box.list("/box")}
        assert {name: entry.kind for name, entry in found.items()} == {
            "deep": EntryKind.folder, "fifo": EntryKind.other, "file": EntryKind.file, "link": EntryKind.symlink
        }  # fmt: skip
        assert (found["file"].size, found["file"].mode, found["file"].modified) == (5, 0o600, 1e9)
        assert await box.stat("file") == found["file"]
        assert (await box.stat("link")).kind is EntryKind.symlink
        assert (await box.stat("deep/er")).mode == 0o750

    lab.with_box(look)


def test_a_folder_of_many_names_comes_whole(lab: Lab) -> None:
    async def look(box: Box) -> None:
        code = "import os\nos.mkdir('many')\nfor i in range(1500): open(f'many/{i:0200}', 'w').close()"
        assert (await box.exec(["python3", "-c", code])).ok
        assert [entry.name for entry in await box.list("many")] == [f"{i:0200}" for i in range(1500)]

    lab.with_box(look)


def test_a_name_that_is_not_utf8_is_told_and_can_be_seen(lab: Lab) -> None:
    async def look(box: Box) -> list[str]:
        assert (await box.exec(["python3", "-c", "open(b'\\xff', 'w').close()"])).ok
        return [entry.name for entry in await box.list()]

    assert lab.with_box(look) == ["\udcff"]


@pytest.mark.parametrize("path", ["/etc", "..", "/", "a/../../etc"])
def test_no_folder_outside_is_listed(lab: Lab, path: str) -> None:
    async def look(box: Box) -> None:
        for call in (box.list, box.stat, box.mkdir):
            with pytest.raises(InvalidPath):
                await call(path)

    lab.with_box(look)


def test_a_symlink_to_a_folder_is_not_followed(lab: Lab) -> None:
    async def look(box: Box) -> None:
        assert (await box.exec(["sh", "-c", "ln -s /etc etc; mkdir real; ln -s real soft"])).ok
        for path in ("etc", "soft", "soft/inner"):
            for call in (box.list, box.mkdir):
                with pytest.raises(FileFault) as caught:
                    await call(path)
                assert caught.value.error in (errno.ELOOP, errno.ENOTDIR)
        with pytest.raises(FileFault):
            await box.stat("etc/passwd")

    lab.with_box(look)


def test_an_archive_comes_back_as_it_went_in(lab: Lab) -> None:
    async def round_trip(box: Box) -> None:
        await box.write("a/b/file", bytes(range(256)) * 3000, 0o640)
        await box.mkdir("a/empty")
        await box.write("top", b"t", 0o755)
        out = await box.tar_out()
        assert await box.tar_in(out, "copy") == 5
        assert await box.tar_out("copy") == out
        assert (
            said(
                await box.exec(
                    ["sh", "-c", "cmp a/b/file copy/a/b/file && stat -c %a copy/top copy/a/b/file"]
                )
            )
            == "755\n640"
        )
        assert await box.tar_in(gzip.compress(out), "/tmp/zipped") == 5

    lab.with_box(round_trip)


def test_links_and_special_files_stay_behind(lab: Lab) -> None:
    async def out(box: Box) -> list[str]:
        assert (
            await box.exec(["sh", "-c", "ln -s /etc/shadow s; ln -s /etc d; mkfifo f; echo x > x; ln x hard"])
        ).ok
        with tarfile.open(fileobj=io.BytesIO(await box.tar_out())) as archive:
            return sorted(archive.getnames())

    assert lab.with_box(out) == ["hard", "x"]


def test_a_folder_that_is_too_large_is_refused_unread(lab: Lab) -> None:
    async def out(box: Box) -> None:
        assert (await box.exec(["truncate", "-s", "20M", "sparse"])).ok
        with pytest.raises(ArchiveRefused, match="more than 1000000"):
            await box.tar_out(max_bytes=1_000_000)

    lab.with_box(out)


def member(change: Callable[[tarfile.TarInfo], None], data: bytes = b"") -> bytes:
    """A tar of one good file and one member as changed."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good"))
        info = tarfile.TarInfo("bad")
        info.size = len(data)
        change(info)
        archive.addfile(info, io.BytesIO(data))
    return into.getvalue()


def with_(**values: object) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        for name, value in values.items():
            setattr(info, name, value)

    return change


BAD = {
    "above": member(with_(name="../x")),
    "absolute": member(with_(name="/etc/x")),
    "hidden above": member(with_(name="a/../../x")),
    "symlink": member(with_(type=tarfile.SYMTYPE, linkname="/etc")),
    "hard link": member(with_(type=tarfile.LNKTYPE, linkname="good")),
    "device": member(with_(type=tarfile.CHRTYPE, devmajor=1, devminor=1)),
    "fifo": member(with_(type=tarfile.FIFOTYPE)),
    "large": member(with_(), b"x" * 2_000_000),
    "bomb": gzip.compress(member(with_(), bytes(2_000_000))),
    "cut short": member(with_(), b"x" * 10_000)[:3000],
    "rubbish": b"rubbish" * 1000,
    "many": gzip.compress(b"".join(member(with_(name=f"n{n}"))[:1024] for n in range(20_001))),
}


@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_bad_archive_is_refused_whole(lab: Lab, kind: str) -> None:
    async def into(box: Box) -> None:
        with pytest.raises(ArchiveRefused):
            await box.tar_in(BAD[kind], max_bytes=1_000_000)
        assert await box.list() == []

    lab.with_box(into)


def test_an_archive_cannot_be_written_through_a_planted_link(lab: Lab) -> None:
    async def into(box: Box) -> None:
        assert (await box.exec(["sh", "-c", "mkdir out /tmp/there; ln -s /tmp/there out/a"])).ok
        with pytest.raises(FileFault):
            await box.tar_in(member(with_(name="a/x")), "out")
        assert await box.list("/tmp/there") == []

    lab.with_box(into)


def test_what_a_box_uses_is_told(lab: Lab) -> None:
    async def look(box: Box) -> None:
        fresh = await box.stats()
        assert (fresh.processes, fresh.background, fresh.disk_mb, fresh.inodes) == (
            1,
            0,
            LIMITS.disk_mb,
            LIMITS.inodes,
        )
        await box.write("big", bytes(8 << 20))
        keeper = await box.start(
            [
                "python3",
                "-c",
                "x = bytearray(40_000_000); print(1, flush=True); import time; time.sleep(1000)",
            ]
        )
        await keeper.more()
        used = await box.stats()
        assert used.disk_used_mb - fresh.disk_used_mb == pytest.approx(8, abs=0.1)
        assert used.inodes_used == fresh.inodes_used + 1
        assert used.memory_mb > fresh.memory_mb + 40
        assert used.memory_peak_mb >= used.memory_mb - 1
        assert used.cpu_seconds > fresh.cpu_seconds
        assert (used.processes, used.background) == (3, 1)

    lab.with_box(look)
