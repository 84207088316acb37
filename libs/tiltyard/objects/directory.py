"""Objects in a directory of one machine.

Guarantees: an object appears whole or not at all, also after a crash of the process; with `fsync`, also
after a loss of power. A key leads to nothing outside the directory.
Does not: protect from another program that writes into the directory.

Each key is a symbolic link to a file in `.objects/` whose name holds the SHA-256: the link is the one atomic
place where a key, its bytes and its checksum meet, and a person can still read the files by key. Paths are
text here: with `Path` a small object took four times as long."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tiltyard.objects import content
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
TURNS = 8
"""Times that a reader follows a link which is replaced under its hands."""
PROVEN = 4_096
"""Folders that were seen to lie within the root, and are not looked at again."""
NO_LINK = {errno.ENOENT, errno.ENOTDIR, errno.EINVAL}
"""How reading a link fails where there is none; EINVAL: it is a folder."""
REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS}


class DirectoryStore:
    """An `ObjectStore` in one folder. Has no signed URLs."""

    def __init__(self, root: Path, *, fsync: bool = False) -> None:
        if not root.is_absolute():
            raise ValueError(f"object store folder {str(root)!r} must be absolute")
        self.root = root
        self._real_root = root.resolve()
        self._content = f"{root}/{CONTENT}"
        self._fsync = fsync
        self._prove = lru_cache(PROVEN)(self._refuse_leading_out)

    def prepare(self) -> None:
        with self._translated(str(self.root)):
            os.makedirs(self._content, exist_ok=True)
        probe = f"probe-{uuid4().hex}"
        self.put(probe, b"probe")
        self.get(probe)
        self.delete(probe)

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> ObjectInfo:
        link = self._link(key)
        with self._translated(key):
            blob, size = self._write(data)
            info = ObjectInfo(key=key, size=size, sha256=content.sha256_in(blob))
            try:
                self._point(key, link, blob, replace=not if_absent)
            except FileExistsError:
                os.unlink(blob)
                return self._same_or_conflict(key, info)
            except BaseException:  # nothing may be left behind, whatever stopped us
                content.remove(blob)
                raise
        return info

    def get(self, key: str) -> bytes:
        link = self._link(key)
        with self._translated(key):
            data, expected = self._follow(key, link, content.read)
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
            return os.path.islink(link) and os.path.exists(link)

    def list(self, prefix: str) -> Iterator[str]:
        folder = self.root / checked_prefix(prefix)
        with self._translated(prefix):
            keys = [key for key in self._walk(folder) if key.startswith(prefix)]
        return iter(keys)

    def delete(self, key: str) -> None:
        link = self._link(key)
        with self._translated(key), contextlib.suppress(FileNotFoundError), self._exclusive():
            blob = _target(link)
            os.unlink(link)
            content.remove(blob)
            self._prune(Path(link).parent)

    def signed_url(self, key: str, *, expires: timedelta) -> str | None:
        checked_key(key)
        return None

    def _link(self, key: str) -> str:
        """The place of a key, proven to lie within the root."""
        folder, _, _ = checked_key(key).rpartition("/")
        if key.split("/", 1)[0] == CONTENT:
            raise InvalidKey(f"object key {key!r} begins with {CONTENT}, which holds the store's own files")
        if folder:
            self._prove(folder)
        return f"{self.root}/{key}"

    def _refuse_leading_out(self, folder: str) -> None:
        """Raise `InvalidKey` for a folder that lies elsewhere, through a link in its own place or above."""
        above, _, _ = folder.rpartition("/")
        if above:
            self._prove(above)
        path = f"{self.root}/{folder}"
        if os.path.islink(path) and not Path(path).resolve().is_relative_to(self._real_root):
            raise InvalidKey(f"every object key below {folder!r} leads out of {self.root}")

    def _write(self, data: bytes | Path) -> tuple[str, int]:
        try:
            return content.write(self._content, data, fsync=self._fsync)
        except FileNotFoundError:  # the folder is not made yet, or a source is missing and will be again
            os.makedirs(self._content, exist_ok=True)
            return content.write(self._content, data, fsync=self._fsync)

    def _point(self, key: str, link: str, blob: str, *, replace: bool) -> None:
        """Make the key lead to the blob; FileExistsError when it is taken and may not be replaced."""
        target = "../" * key.count("/") + CONTENT + blob.removeprefix(self._content)
        if not self._point_anew(key, link, target):
            with self._exclusive():
                self._make_folder(key, link)
                if replace and os.path.islink(link):
                    self._replace(link, target)
                else:
                    os.symlink(target, link)
        if self._fsync:
            for folder in (os.path.dirname(link), os.path.dirname(blob), self._content):
                content.sync_folder(folder)

    def _point_anew(self, key: str, link: str, target: str) -> bool:
        """Point a key that leads nowhere yet; False when it is taken, or its folder is being removed.

        Making a link is atomic by itself: it needs no lock, which all writers of the store would wait for."""
        try:
            self._make_folder(key, link)
            os.symlink(target, link)
        except FileExistsError as error:
            if os.path.isdir(link):
                raise InvalidKey(f"object key {key!r} is a folder of other keys in {self.root}") from error
            return False
        except FileNotFoundError:
            return False
        return True

    def _make_folder(self, key: str, link: str) -> None:
        try:
            os.makedirs(os.path.dirname(link), exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidKey(f"object key {key!r} lies below another key in {self.root}") from error

    def _replace(self, link: str, target: str) -> None:
        fresh = f"{self._content}/link-{uuid4().hex}"
        os.symlink(target, fresh)
        old = _target(link)
        os.rename(fresh, link)
        content.remove(old)

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
        with open(f"{self._content}/lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _same_or_conflict(self, key: str, wanted: ObjectInfo) -> ObjectInfo:
        present = self.stat(key)
        if present.sha256 != wanted.sha256:
            raise conflict(key, str(self.root), present=present.sha256, wanted=wanted.sha256)
        return present

    def _follow(self, key: str, link: str, act: Callable[[str], T]) -> tuple[T, str]:
        """Act on the bytes of a key, and give the checksum that their name states."""
        for _ in range(TURNS):
            try:
                blob = _target(link)
            except OSError as error:
                if error.errno in NO_LINK:
                    raise ObjectMissing(f"no object {key!r} in {self.root}") from error
                raise
            with contextlib.suppress(FileNotFoundError):  # replaced or deleted since: look again
                return act(blob), content.sha256_in(blob)
        raise ObjectCorrupt(f"object {key!r} in {self.root} points to bytes that are gone; put it again")

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


def _target(link: str) -> str:
    """Where a link leads."""
    return f"{os.path.dirname(link)}/{os.readlink(link)}"
