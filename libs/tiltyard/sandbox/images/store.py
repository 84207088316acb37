"""The store: `<digest>/root` for each image, names beside, locks of who uses what.

Guarantees: an image is in the store whole or not at all and never changes; one that a pool of any process
uses is not removed; a name is resolved once, when a pool opens.
Does not: verify at every use: `verify` reads every byte."""

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable

from . import source
from .digest import content_digest
from .unpack import Bounds, Unpacker

STORE = Path("/var/lib/tiltyard/images")
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
    """host, folder, tar, docker save or oci"""
    content: int | None
    """bytes in files; None: not counted"""
    in_use: bool


class ImageStore:
    """A folder that only root may write."""

    def __init__(self, folder: Path = STORE) -> None:
        self.folder = folder

    def add(self, path: Path, name: str, *, digest: str | None = None, bounds: Bounds | None = None) -> str:
        """Imports an image under a name; its digest. `digest` pins it: another content is refused.

        Raises ImageFault, SandboxUnavailable."""
        if not name or name == "host" or name.startswith("sha256:") or "/" in name:
            raise ImageFault(f"name {name!r}: give another than 'host', without '/' and not a digest")
        self._open()
        scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=".making-"))
        try:
            scratch.chmod(0o755)
            found = self._make(path, scratch, bounds or Bounds())
            if digest is not None and found != digest:
                raise ImageFault(f"{path} has the digest {found}, not {digest}: it is another image")
            target = self.folder / found.removeprefix("sha256:")
            with self._changing_names() as names:
                if not target.exists():
                    scratch.rename(target)
                names[name] = found
            return found
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _make(self, path: Path, scratch: Path, bounds: Bounds) -> str:
        root = scratch / "root"
        root.mkdir(mode=0o755)
        unpacker = Unpacker(root, bounds)
        kind = source.unpack(path, unpacker)
        unpacker.finish()
        digest, size, entries = content_digest(root)
        facts = {"digest": digest, "kind": kind, "content": size, "entries": entries}
        (scratch / _FACTS).write_text(json.dumps(facts))
        return digest

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

    def verify(self, reference: str) -> str:
        """Reads every byte; the digest. Raises ImageFault, naming both digests when they differ."""
        digest = self.resolve(reference)
        folder = self._root(digest).parent
        if not (folder / _FACTS).exists():
            raise ImageFault(f"{digest} is a `host` image, whose digest is of its recipe: nothing to compare")
        found, _, _ = content_digest(folder / "root")
        if found != digest:
            raise ImageFault(
                f"image {digest} has the digest {found} now: it was changed; remove and import it"
            )
        return digest

    def prune(self, *names: str, keep: str = "") -> tuple[str, ...]:
        """Removes every image without a name that nobody uses, after taking these names away.

        `keep`: a digest to keep all the same. Raises ImageFault for an unknown name."""
        removed: list[str] = []
        self._open()
        with self._changing_names() as known:
            for name in names:
                if known.pop(name, None) is None:
                    raise ImageFault(f"no image is named {name!r}")
            for folder in self._folders():
                digest = f"sha256:{folder.name}"
                if digest != keep and digest not in known.values() and self._take_out(folder):
                    removed.append(digest)
        self._sweep()
        return tuple(removed)

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        except OSError as error:
            raise SandboxUnavailable(
                f"cannot write the image store {self.folder}: {error.strerror}; run this as root"
            ) from error

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
            gone = Path(tempfile.mkdtemp(dir=self.folder, prefix=".pruned-"))
            folder.rename(gone / "image")
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
