"""The bytes of a directory store: files below a folder, each under a fresh name that begins with its SHA-256.

Guarantees: a file that was written is whole, and its name tells the checksum of what was written; what stops
the writing leaves no file. Does not: know keys. A process that dies while it writes leaves a file that no key
leads to."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

CHUNK = 1 << 20
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write(folder: str, data: bytes | Path, *, fsync: bool) -> tuple[str, int]:
    """Path and size of a new file with these bytes, or with those of another file."""
    if isinstance(data, bytes):
        path = _name(folder, hashlib.sha256(data).hexdigest())
        _in_folder(lambda: _fill(path, data, fsync=fsync), path)
        return path, len(data)
    part = f"{folder}/part-{uuid4().hex}"
    try:
        sha256, size = _copy(data, part, fsync=fsync)
        path = _name(folder, sha256)
        _in_folder(lambda: os.rename(part, path), path)
    except BaseException:
        remove(part)
        raise
    return path, size


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def remove(path: str) -> None:
    """Nothing happens when it is gone already."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def sha256_in(path: str) -> str:
    """The checksum that a file's name tells."""
    return os.path.basename(path).partition("-")[0]


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(folder: str, sha256: str) -> str:
    """Spread over 256 folders: ext4 takes the inodes of a folder's files from one place, and where many were
    freed lately it looks long for one that may be used."""
    return f"{folder}/{sha256[:2]}/{sha256}-{uuid4().hex}"


def _in_folder(make: Callable[[], None], path: str) -> None:
    """Make a file; its folder too, where that is missing."""
    try:
        make()
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        make()


def _fill(path: str, data: bytes, *, fsync: bool) -> None:
    descriptor = os.open(path, _FRESH, 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if fsync:
            os.fsync(descriptor)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _copy(source: Path, target: str, *, fsync: bool) -> tuple[str, int]:
    """SHA-256 and size of what was written."""
    digest = hashlib.sha256()
    with source.open("rb") as given, open(target, "xb") as file:
        while chunk := given.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
        if fsync:
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest(), file.tell()
