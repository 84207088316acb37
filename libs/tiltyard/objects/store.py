"""The port of the object store: what every backend does, and how it fails.

Guarantees: one meaning of keys and one set of errors for every backend.
Does not: hold two objects where one key is a folder of the other (`a` and `a/b`); a directory cannot."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

LONGEST_KEY = 900
"""Bytes of a key; S3 allows 1,024, and a prefix needs room."""
LONGEST_SEGMENT = 200
"""Bytes between two slashes; file systems allow 255, and a temporary name needs room."""


class ObjectError(Exception):
    """Any failure of the object store; the message names the key and the store."""


class ObjectMissing(ObjectError):
    """No object has this key."""


class ObjectCorrupt(ObjectError):
    """The bytes are not those that were put: their SHA-256 differs, after reading them again."""


class ObjectConflict(ObjectError):
    """The key is taken by other bytes, and `if_absent` forbids to replace them."""


class ObjectStoreUnavailable(ObjectError):
    """The store could not be reached, or is full; already retried with jitter; worth another try later."""


class ObjectStoreRefused(ObjectError):
    """The store answered and refuses: credentials, permissions, a missing bucket. Waiting does not help."""


class InvalidKey(ObjectError, ValueError):
    """The key is outside the grammar that `checked_key` states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What is known of one object."""

    key: str
    size: int
    """Bytes."""
    sha256: str
    """64 hex digits, of the bytes as they were put."""


class ObjectStore(Protocol):
    """Objects by key. Every method blocks, may be called from any thread, and raises `ObjectError` alone."""

    def prepare(self) -> None:
        """Make the directory or bucket if it is missing, and prove that it can be written and read."""
        ...

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> ObjectInfo:
        """Store the bytes, or the content of the file, whole or not at all.

        With `if_absent`, a key that holds the same bytes is left alone, and one that holds others raises
        `ObjectConflict`; of two writers at once, one wins."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes, verified; `ObjectMissing` or `ObjectCorrupt` otherwise."""
        ...

    def get_to(self, key: str, path: Path) -> ObjectInfo:
        """Write the verified bytes to `path`, which appears whole or not at all."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Size and checksum as recorded, without reading the bytes; `ObjectMissing` when there is none."""
        ...

    def exists(self, key: str) -> bool:
        """Whether an object has this key."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix` (`""`, `runs/`, `runs/r1/rollouts/7`), in no order to rely on."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""
        ...

    def signed_url(self, key: str, *, expires: timedelta) -> str | None:
        """A URL that reads the object without credentials until it expires; None where a backend has none."""
        ...


def checked_key(key: str) -> str:
    """The key itself, when it is `segment/segment/…` of printable characters; `InvalidKey` otherwise."""
    wrong = _wrong_with(key)
    if wrong:
        raise InvalidKey(
            f"object key {key[:200]!r} {wrong}; write it like runs/r1/rollouts/7/1/attempt.json.gz"
        )
    return key


def checked_prefix(prefix: str) -> str:
    """The folder that a prefix for `list` lies in, `""` for the root; `InvalidKey` if it begins no key."""
    folder, _, last = prefix.rpartition("/")
    if prefix:
        checked_key(prefix if last else prefix[:-1])
    return folder


def _wrong_with(key: str) -> str | None:
    if not key.isprintable() or "\\" in key:
        return "holds a control character, a surrogate or a backslash"
    if len(key.encode()) > LONGEST_KEY:
        return f"is longer than {LONGEST_KEY} bytes"
    segments = key.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return "is empty, begins or ends with a slash, or has an empty, `.` or `..` segment"
    if any(len(segment.encode()) > LONGEST_SEGMENT for segment in segments):
        return f"has a segment longer than {LONGEST_SEGMENT} bytes"
    return None


def sha256_of(data: bytes | Path) -> tuple[str, int]:
    """Hex SHA-256 and size of bytes or of a file, read in a stream."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest(), len(data)
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest, file.tell()


def conflict(key: str, store: str, *, present: str, wanted: str) -> ObjectConflict:
    """The error for a key that holds other bytes; `present` and `wanted` are SHA-256."""
    return ObjectConflict(
        f"object {key!r} in {store} already holds other bytes (sha256 {present[:12]}…, not {wanted[:12]}…); "
        "immutable keys are written once"
    )


def corrupt(key: str, store: str, *, expected: str, actual: str) -> ObjectCorrupt:
    """The error for bytes whose SHA-256 is not the one recorded."""
    return ObjectCorrupt(
        f"object {key!r} in {store} is corrupt: sha256 is {actual[:12]}…, and {expected[:12]}… was put; "
        "restore it from a copy or delete it"
    )
