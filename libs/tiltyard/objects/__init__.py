"""The object store: every artifact, under immutable keys, in a directory or in S3.

Guarantees: what `get` returns has the SHA-256 that was computed when it was put.
Does not: know what an artifact is, or delete what a row still points to; the caller does."""

from tiltyard.objects.opening import open_store
from tiltyard.objects.store import (
    InvalidKey,
    ObjectConflict,
    ObjectCorrupt,
    ObjectError,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)

__all__ = [
    "InvalidKey",
    "ObjectConflict",
    "ObjectCorrupt",
    "ObjectError",
    "ObjectInfo",
    "ObjectMissing",
    "ObjectStore",
    "ObjectStoreRefused",
    "ObjectStoreUnavailable",
    "open_store",
]
