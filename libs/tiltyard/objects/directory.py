"""Objects in a directory of one machine.

Guarantees: an object appears whole or not at all, also after a crash of the process; with `fsync`, also
after a loss of power. A key leads to nothing outside the directory.
Does not: protect from another program that writes into the directory.

Each key is a symbolic link to a file in `.objects/` whose name holds the SHA-256: the link is the one atomic
place where a key, its bytes and its checksum meet, and a person can still read the files by key."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tiltyard.objects.store import (
    InvalidKey,
    ObjectCorrupt,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    checked_key,
    checked_prefix,
    conflict,
    corrupt,
    sha256_of,
)

T = TypeVar("T")

CONTENT = ".objects"
"""Folder of the bytes; no key may begin with it."""
CHUNK = 1 << 20
TURNS = 8
"""Times that a reader follows a link which is replaced under its hands."""
REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS}


class DirectoryStore:
    """An `ObjectStore` in one folder. Has no signed URLs."""

    def __init__(self, root: Path, *, fsync: bool = False) -> None:
        if not root.is_absolute():
            raise ValueError(f"object store folder {str(root)!r} must be absolute")
        self.root = root
        self._real_root = root.resolve()
        self._content = root / CONTENT
        self._fsync = fsync

    def prepare(self) -> None:
        with self._translated(str(self.root)):
            self._content.mkdir(parents=True, exist_ok=True)
        probe = f"probe-{uuid4().hex}"
        self.put(probe, b"probe")
        self.get(probe)
        self.delete(probe)

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> ObjectInfo:
        link = self._link(key)
        with self._translated(key):
            blob, info = self._write(key, data)
            try:
                self._point(link, blob, replace=not if_absent)
            except FileExistsError:
                blob.unlink()
                return self._same_or_conflict(key, info)
            except BaseException:  # nothing may be left behind, whatever stopped us
                blob.unlink(missing_ok=True)
                raise
        return info

    def get(self, key: str) -> bytes:
        link = self._link(key)
        with self._translated(key):
            data, expected = self._follow(key, link, Path.read_bytes)
        actual = hashlib.sha256(data).hexdigest()
        if actual != expected:
            raise corrupt(key, str(self.root), expected=expected, actual=actual)
        return data

    def get_to(self, key: str, path: Path) -> ObjectInfo:
        link = self._link(key)
        part = path.with_name(f".{path.name[:100]}.{uuid4().hex}")
        with self._translated(key):
            try:
                _, expected = self._follow(key, link, partial(shutil.copyfile, dst=part))
                actual, size = sha256_of(part)
                if actual != expected:
                    raise corrupt(key, str(self.root), expected=expected, actual=actual)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return ObjectInfo(key=key, size=size, sha256=actual)

    def stat(self, key: str) -> ObjectInfo:
        link = self._link(key)
        with self._translated(key):
            status, sha256 = self._follow(key, link, os.stat)
        return ObjectInfo(key=key, size=status.st_size, sha256=sha256)

    def exists(self, key: str) -> bool:
        link = self._link(key)
        with self._translated(key):
            return link.is_symlink() and link.exists()

    def list(self, prefix: str) -> Iterator[str]:
        folder = self.root / checked_prefix(prefix)
        with self._translated(prefix):
            keys = [key for key in self._walk(folder) if key.startswith(prefix)]
        return iter(keys)

    def delete(self, key: str) -> None:
        link = self._link(key)
        with self._translated(key), contextlib.suppress(FileNotFoundError), self._exclusive():
            blob = link.parent / link.readlink()
            link.unlink()
            blob.unlink(missing_ok=True)
            self._prune(link.parent)

    def signed_url(self, key: str, *, expires: timedelta) -> str | None:
        checked_key(key)
        return None

    def _link(self, key: str) -> Path:
        """The place of a key, proven to lie within the root."""
        link = self.root / checked_key(key)
        if key.split("/", 1)[0] == CONTENT:
            raise InvalidKey(f"object key {key!r} begins with {CONTENT}, which holds the store's own files")
        if not link.parent.resolve().is_relative_to(self._real_root):
            raise InvalidKey(f"object key {key!r} leads out of {self.root}")
        return link

    def _write(self, key: str, data: bytes | Path) -> tuple[Path, ObjectInfo]:
        """Write the bytes under a name of their own; the checksum is of what was written."""
        part = self._content / f"part-{uuid4().hex}"
        try:
            sha256, size = self._copy(data, part)
            blob = part.with_name(f"{sha256}-{part.name.removeprefix('part-')}")
            part.rename(blob)
        except BaseException:  # nothing may be left behind, whatever stopped us
            part.unlink(missing_ok=True)
            raise
        return blob, ObjectInfo(key=key, size=size, sha256=sha256)

    def _copy(self, data: bytes | Path, part: Path) -> tuple[str, int]:
        try:
            return _copy(data, part, fsync=self._fsync)
        except FileNotFoundError:  # the folder is not made yet, or a source is missing and will be again
            self._content.mkdir(parents=True, exist_ok=True)
            return _copy(data, part, fsync=self._fsync)

    def _point(self, link: Path, blob: Path, *, replace: bool) -> None:
        """Make the key lead to the blob; FileExistsError when it is taken and may not be replaced."""
        if link.is_dir():
            raise InvalidKey(f"object key {link.relative_to(self.root)} is a folder of other keys")
        target = os.path.relpath(blob, link.parent)
        if not self._point_anew(link, target):
            with self._exclusive():
                self._make_folder(link)
                if replace and link.is_symlink():
                    self._replace(link, target)
                else:
                    link.symlink_to(target)
        if self._fsync:
            _sync_folder(link.parent)
            _sync_folder(self._content)

    def _point_anew(self, link: Path, target: str) -> bool:
        """Point a key that leads nowhere yet; False when it is taken, or its folder is being removed.

        Making a link is atomic by itself: it needs no lock, which all writers of the store would wait for."""
        self._make_folder(link)
        try:
            link.symlink_to(target)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def _make_folder(self, link: Path) -> None:
        try:
            link.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            key = link.relative_to(self.root)
            raise InvalidKey(f"object key {key} lies below another key in {self.root}") from error

    def _replace(self, link: Path, target: str) -> None:
        fresh = self._content / f"link-{uuid4().hex}"
        fresh.symlink_to(target)
        old = link.parent / link.readlink()
        fresh.rename(link)
        old.unlink(missing_ok=True)

    def _prune(self, folder: Path) -> None:
        """Remove folders that hold no key any more, so that their name may become a key."""
        with contextlib.suppress(OSError):  # not empty: done
            while folder != self.root:
                folder.rmdir()
                folder = folder.parent

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One at a time replaces or removes links, over all threads and processes; bytes are written and new
        links are made outside of it."""
        with (self._content / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _same_or_conflict(self, key: str, wanted: ObjectInfo) -> ObjectInfo:
        present = self.stat(key)
        if present.sha256 != wanted.sha256:
            raise conflict(key, str(self.root), present=present.sha256, wanted=wanted.sha256)
        return present

    def _follow(self, key: str, link: Path, act: Callable[[Path], T]) -> tuple[T, str]:
        """Act on the bytes of a key, and give the checksum that their name states."""
        for _ in range(TURNS):
            blob = self._blob(key, link)
            with contextlib.suppress(FileNotFoundError):  # replaced or deleted since: look again
                return act(blob), blob.name.partition("-")[0]
        raise ObjectCorrupt(f"object {key!r} in {self.root} points to bytes that are gone; put it again")

    def _blob(self, key: str, link: Path) -> Path:
        try:
            return link.parent / link.readlink()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):  # EINVAL: a folder, not a link
                raise ObjectMissing(f"no object {key!r} in {self.root}") from error
            raise

    def _walk(self, folder: Path) -> Iterator[str]:
        for parent, folders, names in os.walk(folder):
            if Path(parent) == self.root:
                folders[:] = [name for name in folders if name != CONTENT]
            yield from ((Path(parent) / name).relative_to(self.root).as_posix() for name in names)

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = ObjectStoreRefused if error.errno in REFUSALS else ObjectStoreUnavailable
            raise kind(
                f"object {key!r} in {self.root}: {error}; check the folder, its owner and its disk"
            ) from error


def _copy(data: bytes | Path, target: Path, *, fsync: bool) -> tuple[str, int]:
    """Write bytes or a file to `target`; the SHA-256 and size of what was written."""
    digest = hashlib.sha256()
    source = BytesIO(data) if isinstance(data, bytes) else data.open("rb")
    with source, target.open("xb") as file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest(), file.tell()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
