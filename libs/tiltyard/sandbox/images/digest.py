"""The digest of a root's content.

Guarantees: the same names, kinds, modes, bytes and link targets give the same digest, in whatever order and
from whatever archive they came. Does not: cover times and owners."""

import hashlib
import os
import stat
from pathlib import Path

from tiltyard.sandbox.errors import ImageFault

_CHUNK = 1 << 20


def content_digest(root: Path) -> tuple[str, int, int]:
    """`sha256:…`, bytes in files, entries. Raises ImageFault for what no image holds."""
    total = hashlib.sha256(b"tiltyard image 1\0")
    size = entries = 0
    for folder, names, files in os.walk(os.fsencode(root)):
        names.sort()
        for name in sorted([*names, *files]):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            below = os.path.relpath(path, os.fsencode(root))
            total.update(below + b"\0" + _entry(path, found) + b"\0")
            entries += 1
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return f"sha256:{total.hexdigest()}", size, entries


def _entry(path: bytes, found: os.stat_result) -> bytes:
    mode = f"{stat.S_IMODE(found.st_mode):o}".encode()
    if stat.S_ISDIR(found.st_mode):
        return b"d" + mode
    if stat.S_ISLNK(found.st_mode):
        return b"l" + os.readlink(path)
    if not stat.S_ISREG(found.st_mode):
        raise ImageFault(f"{os.fsdecode(path)} is neither file, folder nor link")
    of_file = hashlib.sha256()
    with open(path, "rb") as source:
        while chunk := source.read(_CHUNK):
            of_file.update(chunk)
    return b"f" + mode + b" " + of_file.hexdigest().encode()
