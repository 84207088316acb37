"""The image store: what comes in, what is refused, what stays, and that boxes start from it."""

import asyncio
import fcntl
import gzip
import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.images.conftest import Member, entry, packed
from tests.integration.images.roots import tiny_root
from tiltyard.sandbox import ImageFault, Limits, NativeBackend, SandboxUnavailable, WarmPool
from tiltyard.sandbox.images.store import Hold, ImageStore
from tiltyard.sandbox.images.unpack import Bounds

Archive = Callable[..., Path]


def _root(store: ImageStore, digest: str) -> Path:
    return store.folder / digest.removeprefix("sha256:") / "root"


def test_the_same_content_has_the_same_digest_whatever_it_came_in(
    store: ImageStore, archive: Archive, tmp_path: Path
) -> None:
    one = entry("etc/one", b"1")
    two = entry("etc/two", b"2", mode=0o600)
    one[0].mtime = 1234
    first = store.add(archive(entry("etc", kind=tarfile.DIRTYPE, mode=0o755), one, two), "first")
    second = store.add(archive(two, entry("etc/one", b"1")), "second")
    folder = tmp_path / "folder"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/one").write_bytes(b"1")
    (folder / "etc/two").write_bytes(b"2")
    (folder / "etc").chmod(0o755)
    (folder / "etc/one").chmod(0o644)
    (folder / "etc/two").chmod(0o600)
    assert first == second == store.add(folder, "third")
    assert store.add(archive(entry("etc/one", b"1"), entry("etc/two", b"3", mode=0o600)), "other") != first
    (stored,) = [image for image in store.stored() if image.digest == first]
    assert (stored.names, stored.content) == (("first", "second", "third"), 2)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([entry("../out", b"x")], "leads out"),
        ([entry("a/../../out", b"x")], "leads out"),
        ([entry("/etc/passwd", b"x")], "leads out"),
        ([entry("a", kind=tarfile.SYMTYPE, to="/tmp"), entry("a/out", b"x")], "through the link"),
        (
            [entry("a", kind=tarfile.SYMTYPE, to="/etc/passwd"), entry("b", kind=tarfile.LNKTYPE, to="a")],
            "hard",
        ),
        ([entry("b", kind=tarfile.LNKTYPE, to="../../etc/passwd")], "leads out"),
        ([entry("b", kind=tarfile.LNKTYPE, to="nowhere")], "hard link"),
        ([entry("disk", kind=tarfile.BLKTYPE)], "device"),
        ([entry("pipe", kind=tarfile.FIFOTYPE)], "FIFO"),
        ([entry("proc", kind=tarfile.SYMTYPE, to="/etc")], "mount point"),
        ([entry("a", b"x"), entry("a/b", b"x")], "through the file"),
    ],
)
def test_what_leads_out_or_is_no_file_is_refused_and_leaves_nothing(
    store: ImageStore, archive: Archive, members: list[Member], reason: str
) -> None:
    with pytest.raises(ImageFault, match=reason):
        store.add(archive(*members), "bad")
    assert store.stored() == ()
    assert not list(store.folder.glob(".making-*"))


def test_bombs_end_at_the_bounds(store: ImageStore, archive: Archive) -> None:
    zeros = archive(entry("zeros", bytes(1_000_000)))
    packed_small = zeros.with_suffix(".gz")
    packed_small.write_bytes(gzip.compress(zeros.read_bytes()))
    with pytest.raises(ImageFault, match="more than 100000 bytes"):
        store.add(packed_small, "bomb", bounds=Bounds(content=100_000))
    with pytest.raises(ImageFault, match="10 entries"):
        store.add(archive(*(entry(f"{i}") for i in range(20))), "bomb", bounds=Bounds(entries=10))


def test_setuid_bits_and_devices_below_dev_do_not_come_along(store: ImageStore, archive: Archive) -> None:
    digest = store.add(
        archive(entry("su", b"x", mode=0o4755), entry("dev/null", kind=tarfile.CHRTYPE)), "bits"
    )
    root = _root(store, digest)
    assert os.stat(root / "su").st_mode & 0o7777 == 0o755
    assert list((root / "dev").iterdir()) == []


def test_a_broken_archive_and_an_absent_one_are_named(store: ImageStore, tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"no tar at all" * 100)
    for path in (broken, tmp_path / "absent.tar"):
        with pytest.raises(ImageFault, match=path.name):
            store.add(path, "broken")
    with pytest.raises(ImageFault, match="name"):
        store.add(broken, "host")


def _layout(folder: Path, *layers: bytes) -> Path:
    """An OCI layout of these layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, object]:
        value = hashlib.sha256(data).hexdigest()
        (blobs / value).write_bytes(data)
        return {"digest": f"sha256:{value}", "mediaType": kind, "size": len(data)}

    listed = [
        put(gzip.compress(each, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip") for each in layers
    ]
    manifest = put(json.dumps({"layers": listed}).encode(), "application/vnd.oci.image.manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"manifests": [manifest]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


_LOWER = packed(entry("a/kept", b"1"), entry("a/gone", b"2"), entry("b/old", b"3"), entry("c", b"4"))
_UPPER = packed(
    *(entry("a/.wh.gone"), entry("b/.wh..wh..opq"), entry("b/new", b"5"), entry(".wh.c"), entry("c/d", b"6"))
)


def test_layers_of_an_oci_layout_take_away_what_they_white_out(store: ImageStore, tmp_path: Path) -> None:
    layout = _layout(tmp_path / "layout", _LOWER, _UPPER)
    digest = store.add(layout, "layers")
    root = _root(store, digest)
    found = sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file())
    assert found == ["a/kept", "b/new", "c/d"]
    with tarfile.open(tmp_path / "layout.tar", "w") as tar:
        tar.add(layout, arcname=".")
    assert store.add(tmp_path / "layout.tar", "packed") == digest


def test_a_layer_that_was_changed_is_refused_with_both_digests(store: ImageStore, tmp_path: Path) -> None:
    layout = _layout(tmp_path / "layout", _LOWER)
    layer = next(each for each in (layout / "blobs/sha256").iterdir() if each.read_bytes()[:2] == b"\x1f\x8b")
    changed = gzip.compress(_UPPER, mtime=0)
    layer.write_bytes(changed)
    with pytest.raises(ImageFault, match=f"{layer.name}.*{hashlib.sha256(changed).hexdigest()}"):
        store.add(layout, "changed")


def test_a_pin_and_a_verification_refuse_another_content(store: ImageStore, archive: Archive) -> None:
    path = archive(entry("file", b"1"))
    digest = store.add(path, "pinned")
    assert store.add(path, "again", digest=digest) == digest
    other = archive(entry("file", b"2"))
    with pytest.raises(ImageFault, match=digest):
        store.add(other, "pinned", digest=digest)
    assert store.verify("pinned") == store.verify(digest) == digest
    (_root(store, digest) / "file").write_bytes(b"3")
    with pytest.raises(ImageFault, match=rf"{digest} has the digest sha256:"):
        store.verify("pinned")


def test_pruning_takes_the_unnamed_and_unused_alone(store: ImageStore, archive: Archive) -> None:
    named = store.add(archive(entry("file", b"1")), "named")
    used = store.add(archive(entry("file", b"2")), "used")
    loose = store.add(archive(entry("file", b"3")), "loose")
    old_host = store.folder / ("ab" * 32) / "root"
    old_host.mkdir(parents=True)
    held = Hold(store.folder / ".locks" / used.removeprefix("sha256:"), fcntl.LOCK_SH)  # as tilt-host does
    try:
        removed = store.prune("used", "loose")
        assert set(removed) == {loose, "sha256:" + "ab" * 32}
        assert {image.digest: image.in_use for image in store.stored()} == {named: False, used: True}
    finally:
        held.close()
    assert store.prune() == (used,)
    with pytest.raises(ImageFault, match="named 'loose'"):
        store.prune("loose")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ImageStore]:
    """A store on a file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False).returncode:
        pytest.skip("may not mount")
    yield ImageStore(folder)
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_told_and_leaves_nothing_and_pruning_makes_room(
    small: ImageStore, archive: Archive
) -> None:
    first = small.add(archive(entry("file", b"1" * 600_000)), "first")
    with pytest.raises(SandboxUnavailable, match=r"No space left on device; .*prune"):
        small.add(archive(entry("file", b"2" * 600_000)), "second")
    assert [image.names for image in small.stored()] == [("first",)]
    assert not list(small.folder.glob(".making-*"))
    assert small.verify("first") == first
    stuffing = small.folder / ".stuffing"
    with suppress(OSError), stuffing.open("wb", buffering=0) as full:
        while True:
            full.write(bytes(4096))
    assert small.prune("first") == (first,)
    assert small.add(archive(entry("file", b"2" * 300_000)), "second")


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="making native sandboxes needs root")
@pytest.mark.skipif(
    not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="copies the shell of an x86-64 Debian"
)
def test_native_boxes_start_from_a_name_or_a_digest_and_hold_it(store: ImageStore, tmp_path: Path) -> None:
    digest = store.add(tiny_root(tmp_path / "tiny"), "tiny")

    async def use(reference: str) -> None:
        backend, limits = NativeBackend(store.folder), Limits(memory_mb=64, disk_mb=16)
        async with WarmPool(image=reference, size=1, limits=limits, backend=backend) as pool:
            async with pool.acquire() as box:
                code = (
                    'read -r line < /mark; echo "$line"; echo x > /bin/new; echo $?; echo y > mine; echo $?'
                )
                result = await box.exec(["sh", "-c", code])
                assert result.stdout.split(b"\n")[0] == b"of this image", result
                assert result.stdout.split(b"\n")[1] != b"0"
                assert result.stdout.split(b"\n")[2] == b"0"
            assert store.prune() == ()
        assert store.verify(digest) == digest

    asyncio.run(use("tiny"))
    asyncio.run(use(digest))
    assert store.prune("tiny") == (digest,)
    with pytest.raises(ImageFault, match="images import"):
        asyncio.run(use("tiny"))
