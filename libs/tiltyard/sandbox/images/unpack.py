"""Layers of strangers, unpacked into a folder of ours.

Guarantees: nothing is written outside the root, no link is followed, no device, FIFO or setuid bit comes
along, and a bomb ends at the bounds; whatever else is found is refused with its name.
Does not: keep owners, extended attributes or devices. Everything belongs to root, devices the box brings."""

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tiltyard.sandbox.errors import ImageFault

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_EMPTIED = ("dev", "proc", "sys")
_MOUNT_POINTS = (*_EMPTIED, "tmp", "box", "run")
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CHUNK = 1 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one image may come to."""

    content: int = 32 << 30
    """bytes in files"""
    entries: int = 4_000_000


class Unpacker:
    """One image in the making, layer upon layer."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds
        self._bytes = self._entries = 0

    def apply(self, archive: IO[bytes], what: str, *, whiteouts: bool) -> None:
        """One tar, plain or compressed. `whiteouts`: names `.wh.…` take away what lies below.

        Raises ImageFault; OSError when there is no room."""
        mode: Any = "r:*" if archive.seekable() else "r|*"
        with _unpacking(what), tarfile.open(fileobj=archive, mode=mode) as tar:
            for member in tar:
                self._count(0, 1, what)
                self._take(tar, member, what, whiteouts=whiteouts)

    def put(self, name: str, source: IO[bytes], mode: int, what: str, *, head: bytes = b"") -> None:
        """One file, `head` and whatever follows. Raises ImageFault; OSError when there is no room."""
        parts = _parts(name, what)
        if not parts or parts[0] in _EMPTIED:
            raise ImageFault(f"{what}: {name!r} is no place for a file")
        self._count(len(head), 1, what)
        with _unpacking(what):
            place = self._parent(parts[:-1], what) / parts[-1]
            _remove(place)
            self._write(source, place, mode, what, head)

    def adopt(self, root: Path) -> None:
        """All of another image. Its files are shared, as neither changes. Raises ImageFault, OSError."""
        for folder, names, files in os.walk(root):
            here = self._root / Path(folder).relative_to(root)
            here.mkdir(exist_ok=True)
            here.chmod(stat.S_IMODE(os.stat(folder).st_mode))
            links = [name for name in names if Path(folder, name).is_symlink()]
            for name in (*files, *links):
                os.link(Path(folder, name), here / name, follow_symlinks=False)
            size = sum(os.lstat(Path(folder, name)).st_size for name in files)
            self._count(size, len(files) + len(names), str(root))

    def finish(self) -> None:
        """The folders that a box mounts over, real and empty. Raises ImageFault."""
        for name in _MOUNT_POINTS:
            place = self._root / name
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                raise ImageFault(f"/{name} of the image is no folder: a box needs it as a mount point")
            if name in _EMPTIED and place.is_dir():
                shutil.rmtree(place)
            place.mkdir(exist_ok=True)
            place.chmod(0o1777 if name == "tmp" else 0o755)

    def _count(self, content: int, entries: int, what: str) -> None:
        self._bytes += content
        self._entries += entries
        if self._bytes > self._bounds.content or self._entries > self._bounds.entries:
            raise ImageFault(
                f"{what} unpacks to more than {self._bounds.content} bytes or {self._bounds.entries} entries"
            )

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo, what: str, *, whiteouts: bool) -> None:
        parts = _parts(member.name, what)
        if not parts or (parts[0] in _EMPTIED and len(parts) > 1):
            return
        parent = self._parent(parts[:-1], what)
        if whiteouts and parts[-1].startswith(_WHITEOUT):
            _take_away(parent, parts[-1])
            return
        place = parent / parts[-1]
        if member.isdir():
            if not _is_merged(place, self._root):
                _make_folder(place, stat.S_IMODE(member.mode) & 0o1777)
            return
        _remove(place)
        if member.isreg():
            source = tar.extractfile(member)
            assert source is not None
            with source:
                self._write(source, place, stat.S_IMODE(member.mode) & 0o777, what)
            os.utime(place, (member.mtime, member.mtime))
        elif member.issym():
            os.symlink(member.linkname, place)  # kept as it is: only a box follows it, inside its own root
        elif member.islnk():
            self._link(member, place, what)
        else:
            raise ImageFault(f"{what}: {member.name!r} is a device or FIFO, which no image may bring")

    def _write(self, source: IO[bytes], place: Path, mode: int, what: str, head: bytes = b"") -> None:
        with place.open("xb") as target:
            target.write(head)
            while chunk := source.read(_CHUNK):
                self._count(len(chunk), 0, what)
                target.write(chunk)
        place.chmod(mode)

    def _link(self, member: tarfile.TarInfo, place: Path, what: str) -> None:
        parts = _parts(member.linkname, what)
        target = self._parent(parts[:-1], what) / parts[-1] if parts else self._root
        if target.is_symlink() or not target.is_file():
            raise ImageFault(
                f"{what}: {member.name!r} is a hard link to {member.linkname!r}, no file of the image"
            )
        os.link(target, place, follow_symlinks=False)

    def _parent(self, parts: list[str], what: str) -> Path:
        """The folder to write into; every step a folder of the image, no link but those of a merged /usr."""
        here = self._root
        for part in parts:
            here = here / part
            if _is_merged(here, self._root):
                here = self._root / "usr" / part
            if here.is_symlink():
                raise ImageFault(f"{what}: a name leads through the link /{here.relative_to(self._root)}")
            if not here.exists():
                here.mkdir()
                here.chmod(0o755)
            elif not here.is_dir():
                raise ImageFault(f"{what}: a name leads through the file /{here.relative_to(self._root)}")
        return here


@contextmanager
def _unpacking(what: str) -> Iterator[None]:
    """What is wrong with an archive is its fault; that there is no room for it is not."""
    try:
        yield
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise ImageFault(f"{what} is not a whole tar: {error}") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise ImageFault(f"{what} cannot be unpacked: {error}") from error


def _is_merged(place: Path, root: Path) -> bool:
    """/lib that is a link to usr/lib, and its like: Debian's packages still have files there."""
    return (
        place.parent == root
        and place.name in _MERGED
        and place.is_symlink()
        and os.readlink(place) in (f"usr/{place.name}", f"/usr/{place.name}")
        and stat.S_ISDIR((root / "usr").lstat().st_mode)
    )


def _parts(name: str, what: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ImageFault(f"{what}: {name!r} leads out of the image")
    return parts


def _take_away(parent: Path, name: str) -> None:
    if name == _OPAQUE:
        for each in list(parent.iterdir()):
            _remove(each)
    elif name.removeprefix(_WHITEOUT) not in ("", ".", ".."):
        _remove(parent / name.removeprefix(_WHITEOUT))


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _make_folder(place: Path, mode: int) -> None:
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        place.unlink()
    place.mkdir(exist_ok=True)
    place.chmod(mode | 0o700)
