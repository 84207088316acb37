"""The store: `<digest>/root` for each image, names beside, locks of who uses what.

Guarantees: an image is in the store whole or not at all and never changes; one that a pool of any process
uses is not removed; a name is resolved once, when a pool opens.
Does not: verify at every use: `verify` reads every byte."""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable

from . import source
from .digest import content_digest
from .layer import unpack_lock
from .lock import Lock, differences, is_lock, read_lock
from .unpack import NO_ROOM, Bounds, Unpacker

STORE = Path("/var/lib/tiltyard/images")
_CURES = {
    **dict.fromkeys(NO_ROOM, "; `tiltyard sandbox images prune` may free some"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "; run this as root"),
}
_FACTS, _NAMES, _LOCKS = "image.json", "names.json", ".locks"
_ABANDONED_SECONDS = 86_400
_HEX = set("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image of the store."""

    digest: str
    """sha256:…, over the content; of a `host` image over its recipe"""
    names: tuple[str, ...]
    kind: str
    """host, folder, tar, docker save, oci or lock"""
    content: int | None
    """bytes in files; None: not counted"""
    in_use: bool


class ImageStore:
    """A folder that only root may write."""

    def __init__(self, folder: Path = STORE) -> None:
        self.folder = folder

    def add(
        self,
        path: Path,
        name: str,
        *,
        digest: str | None = None,
        bounds: Bounds | None = None,
        packages: Sequence[Path] = (),
    ) -> str:
        """Imports an image under a name; its digest. `digest` pins it: another content is refused.

        `packages`: folders with a lock's wheels and debs. Raises ImageFault, SandboxUnavailable."""
        if not name or name == "host" or name.startswith("sha256:") or "/" in name:
            raise ImageFault(f"name {name!r}: give another than 'host', without '/' and not a digest")
        lock = read_lock(path) if is_lock(path) else None
        if packages and lock is None:
            raise ImageFault(f"folders of packages are for a lock, and {path} is none")
        with self._writing(), self._scratch() as scratch:
            found = self._make(path, scratch, bounds or Bounds(), lock, packages)
            for pin in (digest, lock.digest if lock else None):
                if pin is not None and found != pin:
                    raise ImageFault(f"{path} has the digest {found}, not {pin}: it is another image")
            target = self.folder / found.removeprefix("sha256:")
            with self._changing_names() as names:
                if not target.exists():
                    scratch.rename(target)
                elif lock is not None:  # the same bytes came otherwise before
                    (scratch / _FACTS).replace(target / _FACTS)
                names[name] = found
            return found

    def _make(
        self, path: Path, scratch: Path, bounds: Bounds, lock: Lock | None, packages: Sequence[Path]
    ) -> str:
        root = scratch / "root"
        root.mkdir(mode=0o755)
        unpacker = Unpacker(root, bounds)
        if lock is None:
            kind = source.unpack(path, unpacker)
        else:
            kind = "lock"
            with self._base(lock) as base:
                unpack_lock(lock, base, root, unpacker, packages)
        unpacker.finish()
        digest, size, entries = content_digest(root)
        facts = {"digest": digest, "kind": kind, "content": size, "entries": entries}
        (scratch / _FACTS).write_text(json.dumps(facts | ({"lock": lock.model_dump()} if lock else {})))
        return digest

    @contextmanager
    def _base(self, lock: Lock) -> Iterator[Path]:
        """What a lock is above, which nobody removes meanwhile."""
        base = self._root(self.resolve(lock.base))
        if not (base.parent / _FACTS).exists():
            raise ImageFault(f"{lock.base} is a `host` image, which has no content of its own to build upon")
        held = Hold(self._lock_of(lock.base), fcntl.LOCK_SH)
        try:
            yield base
        finally:
            held.close()

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=".making-"))
        try:
            scratch.chmod(0o755)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def stored(self) -> tuple[StoredImage, ...]:
        names = self._names()
        return tuple(self._stored(folder, names) for folder in self._folders())

    def resolve(self, reference: str) -> str:
        """A name's or digest's digest. Raises ImageFault."""
        names = self._names()
        digest = names.get(reference, reference)
        if digest.startswith("sha256:") and (self._root(digest)).is_dir():
            return digest
        known = ", ".join(["host", *sorted(names)])
        raise ImageFault(
            f"image {reference!r} is not in {self.folder}, which has: {known}; "
            "`tiltyard sandbox images import` adds one"
        )

    def verify(self, reference: str, lock: Lock | None = None) -> str:
        """Reads every byte; the digest. Raises ImageFault, naming both digests when they differ.

        `lock`: what the image must be made of; whatever differs is named."""
        digest = self.resolve(reference)
        folder = self._root(digest).parent
        if not (folder / _FACTS).exists():
            raise ImageFault(f"{digest} is a `host` image, whose digest is of its recipe: nothing to compare")
        found, _, _ = content_digest(folder / "root")
        if found != digest:
            raise ImageFault(
                f"image {digest} has the digest {found} now: it was changed; remove and import it"
            )
        if lock is not None:
            _check_made_of(folder, lock)
        return digest

    def prune(self, *names: str, keep: str = "") -> tuple[str, ...]:
        """Removes every image without a name that nobody uses, after taking these names away.

        `keep`: a digest to keep all the same. Raises ImageFault for an unknown name."""
        removed: list[str] = []
        with self._writing(), self._changing_names() as known:
            for name in names:
                if known.pop(name, None) is None:
                    raise ImageFault(f"no image is named {name!r}")
            for folder in self._folders():
                digest = f"sha256:{folder.name}"
                if digest != keep and digest not in known.values() and self._take_out(folder):
                    removed.append(digest)
        self._sweep()
        return tuple(removed)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises SandboxUnavailable for a store that cannot be written, with the cure."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
            yield
        except OSError as error:
            cure = _CURES.get(error.errno or 0, "")
            raise SandboxUnavailable(f"cannot write the image store {self.folder}: {error}{cure}") from error

    def _root(self, digest: str) -> Path:
        value = digest.removeprefix("sha256:")
        if len(value) != 64 or not set(value) <= _HEX:
            raise ImageFault(f"{digest!r} is no sha256 digest")
        return self.folder / value / "root"

    def _folders(self) -> list[Path]:
        found = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        return [each for each in found if len(each.name) == 64 and set(each.name) <= _HEX]

    def _stored(self, folder: Path, names: dict[str, str]) -> StoredImage:
        digest = f"sha256:{folder.name}"
        facts: dict[str, Any] = {"kind": "host", "content": None}
        if (folder / _FACTS).exists():
            facts = json.loads((folder / _FACTS).read_text())
        return StoredImage(
            digest=digest,
            names=tuple(sorted(name for name, each in names.items() if each == digest)),
            kind=facts["kind"],
            content=facts["content"],
            in_use=self._is_used(digest),
        )

    def _lock_of(self, digest: str) -> Path:
        place = self.folder / _LOCKS
        place.mkdir(exist_ok=True, mode=0o700)
        return place / digest.removeprefix("sha256:")

    def _is_used(self, digest: str) -> bool:
        try:
            Hold(self._lock_of(digest), fcntl.LOCK_EX | fcntl.LOCK_NB).close()
        except BlockingIOError:
            return True
        return False

    def _take_out(self, folder: Path) -> bool:
        try:
            held = Hold(self._lock_of(f"sha256:{folder.name}"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            os.utime(folder)  # to the sweep it is not abandoned yet
            gone = folder.rename(self.folder / f".pruned-{uuid4().hex}")
        finally:
            held.close()
        shutil.rmtree(gone)
        return True

    def _sweep(self) -> None:
        """What a killed process left half made or half removed."""
        for each in self.folder.glob(".*-*"):
            if time.time() - each.lstat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(each, ignore_errors=True)

    def _names(self) -> dict[str, str]:
        try:
            return json.loads((self.folder / _NAMES).read_text())
        except FileNotFoundError:
            return {}

    @contextmanager
    def _changing_names(self) -> Iterator[dict[str, str]]:
        lock = Hold(self._lock_of("names"), fcntl.LOCK_EX)
        try:
            names = self._names()
            yield names
            with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix=".names-", delete=False) as fresh:
                json.dump(names, fresh)
                os.fchmod(fresh.fileno(), 0o644)  # who may not write the store may look a name up
            os.replace(fresh.name, self.folder / _NAMES)
        finally:
            lock.close()


def _check_made_of(folder: Path, lock: Lock) -> None:
    made_of = json.loads((folder / _FACTS).read_text()).get("lock")
    if made_of is None:
        raise ImageFault(f"image sha256:{folder.name} was not made from a lock")
    if found := differences(Lock.model_validate(made_of), lock):
        raise ImageFault(f"image sha256:{folder.name} is not what was locked: {'; '.join(found)}")


class Hold:
    """A lock on a file, until it is closed or its process ends."""

    def __init__(self, path: Path, how: int) -> None:
        """Raises BlockingIOError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, how)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
