"""The files of a box, kept, and given to others."""

# ruff: noqa: E501  (programs read better unbroken)

import pytest

from tests.integration.sandbox.conftest import Lab, said
from tiltyard.sandbox import ArchiveRefused, Box, Snapshot

pytestmark = pytest.mark.sandbox

LOOK = "cd /; find box tmp dev/shm -mindepth 1 -printf '%p %M %s %l %T@\\n' | sort; cat /box/deep/file"


def test_forks_begin_with_the_files_of_a_snapshot_and_share_nothing_after(lab: Lab) -> None:
    make = "mkdir -p deep; echo text > deep/file; chmod 750 deep; ln -s deep/file link; touch /tmp/t /dev/shm/s; mkfifo /tmp/f"

    async def fork() -> None:
        async with lab.pool.acquire(timeout=60) as box:
            assert (await box.exec(["sh", "-c", make])).ok
            snapshot = await box.snapshot()
            assert (await box.snapshot()).digest == snapshot.digest
            before = said(await box.exec(["sh", "-c", LOOK]))
        async with lab.pool.fork(snapshot, 3, timeout=60) as forks:
            assert [said(await each.exec(["sh", "-c", LOOK])) for each in forks] == [before] * 3
            await forks[0].write("deep/file", b"changed")
            assert await forks[1].read("deep/file") == b"text\n"

    lab.run(fork())


def test_a_large_snapshot_passes_too(lab: Lab) -> None:
    async def fork() -> int:
        async with lab.pool.acquire(timeout=60) as box:
            await box.write("large", b"x" * 20_000_000)
            snapshot = await box.snapshot()
        async with lab.pool.fork(snapshot, timeout=60) as (copy,):
            return (await copy.stat("large")).size

    assert lab.run(fork()) == 20_000_000


def test_what_is_too_large_or_no_archive_is_refused(lab: Lab) -> None:
    async def refuse(box: Box) -> None:
        await box.write("large", b"x" * 2_000_000)
        with pytest.raises(ArchiveRefused, match="raise max_bytes"):
            await box.snapshot(max_bytes=1_000_000)
        with pytest.raises(ArchiveRefused, match="unpacked"):
            await box.restore(Snapshot(b"rubbish" * 1000))

    lab.with_box(refuse)


def test_an_archive_that_leads_out_of_the_box_harms_the_box_alone(lab: Lab) -> None:
    """Whoever made it was the payload of a box; whoever unpacks it is no more than that."""
    code = "import io, sys, tarfile\nwith tarfile.open(fileobj=sys.stdout.buffer, mode='w|') as t:\n  i = tarfile.TarInfo('etc/owned'); i.size = 1; t.addfile(i, io.BytesIO(b'x'))"

    async def unpack(box: Box) -> None:
        forged = (await box.exec(["python3", "-c", code])).stdout
        with pytest.raises(ArchiveRefused, match=r"Read-only|Permission|denied"):
            await box.restore(Snapshot(forged))
        assert (await box.exec(["test", "!", "-e", "/etc/owned"])).ok

    lab.with_box(unpack)
