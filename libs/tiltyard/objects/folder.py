"""Folders of files under one prefix, such as a checkpoint.

Guarantees: a downloaded file has the hash that its row names, and the folder appears whole or not at all.
Does not: follow links or take sub-folders."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tiltyard.objects.store import ObjectCorrupt, ObjectStore


def upload(store: ObjectStore, prefix: str, folder: Path) -> dict[str, str]:
    """Store every file of `folder` under `prefix` (ends with "/"); file name → hex SHA-256."""
    return {
        file.name: store.put(f"{prefix}{file.name}", file).sha256
        for file in sorted(folder.iterdir())
        if file.is_file()
    }


def download(store: ObjectStore, prefix: str, files: Mapping[str, str], folder: Path) -> Path:
    """Make `folder` hold exactly `files`, unless it is there already; returns it.

    Raises `ObjectCorrupt` when a file does not have its hash, and whatever the store raises."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".incoming-"))
    try:
        for name, expected in files.items():
            data = store.get(f"{prefix}{name}")
            if (found := hashlib.sha256(data).hexdigest()) != expected:
                raise ObjectCorrupt(f"{prefix}{name} hashes to {found}, its row says {expected}")
            (scratch / name).write_bytes(data)
        _appear(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _appear(scratch: Path, folder: Path) -> None:
    try:
        scratch.rename(folder)
    except OSError:
        if not os.path.isdir(folder):
            raise
