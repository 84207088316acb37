"""Archives and stores for the tests of images."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tiltyard.sandbox.images.store import ImageStore

Member = tuple[tarfile.TarInfo, bytes]


def entry(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, to: str = "", mode: int = 0o644
) -> Member:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.size = kind, to, mode, len(data)
    return member, data


def packed(*members: Member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., Path]:
    """A tar of these members, in a file."""

    def make(*members: Member) -> Path:
        path = tmp_path / f"{os.urandom(6).hex()}.tar"
        path.write_bytes(packed(*members))
        return path

    return make
