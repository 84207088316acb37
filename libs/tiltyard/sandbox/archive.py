"""Tar archives, looked through before anything is written.

Guarantees: what `plan` returns lies below the folder, holds files and folders alone, and is no larger than
was allowed, whatever its headers claim and however well it was compressed.
Does not: write. Sizes are of the contents; an archive's padding is not counted."""

import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import ArchiveRefused

MAX_ENTRIES = 20_000
_MAX_NAME = 4000


@dataclass(frozen=True, slots=True)
class Member:
    """A file or, without data, a folder."""

    path: str
    """relative, without `..`"""
    mode: int
    data: bytes | None


def plan(archive: bytes, max_bytes: int) -> list[Member]:
    """The members, in order. Raises ArchiveRefused."""
    found: list[Member] = []
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r|*") as opened:
            for info in opened:
                total += info.size
                if total > max_bytes or len(found) >= MAX_ENTRIES:
                    raise ArchiveRefused(
                        f"the archive holds more than {max_bytes} bytes or {MAX_ENTRIES} entries: "
                        "raise max_bytes, or send less"
                    )
                found.append(_member(opened, info))
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ArchiveRefused(f"the archive cannot be read as tar: {error}") from error
    return found


def _member(opened: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
    name = info.name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(name) > _MAX_NAME:
        raise ArchiveRefused(f"member {name[:200]!r} of the archive leads out of its folder")
    if info.isdir():
        return Member("/".join(parts), info.mode & 0o777, None)
    if not info.isreg() or info.issparse() or not parts:
        raise ArchiveRefused(
            f"member {name[:200]!r} of the archive is a link, device or sparse file: "
            "only files and folders pass"
        )
    source = opened.extractfile(info)
    data = source.read() if source is not None else b""
    if len(data) != info.size:
        raise ArchiveRefused(f"member {name[:200]!r} of the archive is cut short")
    return Member("/".join(parts), info.mode & 0o777, data)


def pack(members: Iterable[Member]) -> bytes:
    """A plain tar whose bytes depend on its members alone."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for member in members:
            info = tarfile.TarInfo(member.path)
            info.mode = member.mode
            if member.data is None:
                info.type = tarfile.DIRTYPE
                opened.addfile(info)
            else:
                info.size = len(member.data)
                opened.addfile(info, io.BytesIO(member.data))
    return into.getvalue()
