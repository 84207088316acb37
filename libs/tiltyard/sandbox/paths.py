"""Where in a box a caller may read and write.

Guarantees: what passes here names something below /box or /tmp and can be sent.
Does not: look at the box; symlinks are refused there, by the kernel, at the moment of opening."""

from enum import IntEnum

from .errors import InvalidPath

HOME = "/box"


class Root(IntEnum):
    """The folders that callers may touch."""

    home = 0
    """/box"""
    tmp = 1
    """/tmp"""


_ROOTS = {"box": Root.home, "tmp": Root.tmp}


def locate(path: str, *, folder: bool = False) -> tuple[Root, bytes]:
    """The root and the path below it; `folder` allows a root itself (b"."). Raises InvalidPath."""
    if "\0" in path:
        raise InvalidPath(f"path {path!r} contains NUL: no file can have that name")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidPath(f"path {path!r} contains '..': name the file from {HOME}")
    root = Root.home
    if path.startswith("/"):
        if not parts or parts[0] not in _ROOTS:
            raise InvalidPath(
                f"path {path!r} lies outside the box's folders: use a path below {HOME} or /tmp"
            )
        root = _ROOTS[parts.pop(0)]
    if folder and not parts:
        return root, b"."
    if not parts or (path.endswith("/") and not folder):
        raise InvalidPath(f"path {path!r} names no file")
    return root, _encode(path, "/".join(parts))


def _encode(path: str, below: str) -> bytes:
    try:
        encoded = below.encode()
    except UnicodeEncodeError as error:
        raise InvalidPath(f"path {path!r} is not valid UTF-8: {error.reason}") from error
    if len(encoded) > 4000 or any(len(part) > 255 for part in encoded.split(b"/")):
        raise InvalidPath(f"path of {len(encoded)} bytes is too long: at most 4000, and 255 a component")
    return encoded
