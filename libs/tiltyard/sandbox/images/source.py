"""Where an image comes from: a folder, a tar of a root (`docker export`), `docker save`, or an OCI layout.

Guarantees: a layer whose bytes do not have the digest that the manifest promises is refused with both.
Does not: fetch. Everything lies on this machine already."""

import hashlib
import json
import posixpath
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tiltyard.sandbox.errors import ImageFault

from .unpack import Unpacker

_ZSTD = "zstd"
_CHUNK = 1 << 20


def unpack(source: Path, into: Unpacker) -> str:
    """Every layer, the lowest first; what kind of source it was. Raises ImageFault."""
    if source.is_dir() and (source / "oci-layout").is_file():
        _layers(_Folder(source), into, str(source))
        return "oci"
    if source.is_dir():
        _folder(source, into)
        return "folder"
    if not source.is_file():
        raise ImageFault(f"{source}: there is no such file or folder")
    try:
        with tarfile.open(source) as tar:
            names = {_plain(name) for name in tar.getnames()} if _may_be_layers(tar) else set[str]()
            if "manifest.json" in names or "index.json" in names:
                _layers(_Archive(tar), into, str(source))
                return "docker save" if "manifest.json" in names else "oci"
    except tarfile.TarError as error:
        raise ImageFault(f"{source} is no tar: {error}") from error
    with source.open("rb") as archive:
        into.apply(archive, str(source), whiteouts=False)
    return "tar"


def _may_be_layers(tar: tarfile.TarFile) -> bool:
    """A tar of layers holds a few dozen names at its top; a root's is not listed whole to find out."""
    for count, member in enumerate(tar):
        if _plain(member.name) in ("manifest.json", "index.json", "oci-layout"):
            return True
        if count > 2000:
            return False
    return False


def _plain(name: str) -> str:
    return name.removeprefix("./")


class _Folder:
    """The files of an OCI layout on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        path = self._folder / name
        if (
            path.is_symlink()
            or not path.is_file()
            or not path.resolve().is_relative_to(self._folder.resolve())
        ):
            raise ImageFault(f"{self._folder} has no file {name!r}")
        return path.open("rb")


class _Archive:
    """The files of a tar of layers."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {_plain(member.name): member for member in tar.getmembers()}

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        if member is not None and member.issym():  # older `docker save`: a layer that is there already
            member = self._members.get(posixpath.normpath(f"{posixpath.dirname(name)}/{member.linkname}"))
        found = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if found is None:
            raise ImageFault(f"the archive has no file {name!r}")
        return found


def _layers(files: _Folder | _Archive, into: Unpacker, what: str) -> None:
    if files.has("index.json"):
        for name, digest, kind in _oci_layers(files, what):
            if _ZSTD in kind:
                raise ImageFault(f"{what}: layer {digest} is packed by zstd: save it with gzip or plain")
            with _checked(files, name, digest, what) as layer:
                into.apply(layer, f"{what}, layer {digest[:19]}", whiteouts=True)
        return
    manifests = _json(files, "manifest.json", what)
    if len(manifests) != 1:
        raise ImageFault(f"{what} holds {len(manifests)} images: save one at a time")
    for name in manifests[0]["Layers"]:
        with files.open(name) as layer:
            into.apply(layer, f"{what}, layer {name}", whiteouts=True)


def _oci_layers(files: _Folder | _Archive, what: str) -> Iterator[tuple[str, str, str]]:
    found = _json(files, "index.json", what)
    while "manifests" in found:
        if len(found["manifests"]) != 1:
            raise ImageFault(
                f"{what} holds {len(found['manifests'])} manifests: keep the one for this machine"
            )
        found = _json(files, _blob(found["manifests"][0]["digest"], what), what)
    for layer in found["layers"]:
        yield _blob(layer["digest"], what), layer["digest"], layer.get("mediaType", "")


def _blob(digest: str, what: str) -> str:
    kind, _, value = digest.partition(":")
    if kind != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ImageFault(f"{what}: {digest!r} is no sha256 digest")
    return f"blobs/sha256/{value}"


def _json(files: _Folder | _Archive, name: str, what: str) -> Any:
    try:
        with files.open(name) as source:
            return json.loads(source.read(16 << 20))
    except ValueError as error:
        raise ImageFault(f"{what}: {name} is no JSON: {error}") from error


@contextmanager
def _checked(files: _Folder | _Archive, name: str, digest: str, what: str) -> Iterator[IO[bytes]]:
    """A blob whose bytes were hashed before they are used."""
    found = hashlib.sha256()
    with files.open(name) as source:
        while chunk := source.read(_CHUNK):
            found.update(chunk)
        if f"sha256:{found.hexdigest()}" != digest:
            raise ImageFault(
                f"{what}: layer {digest} has the digest sha256:{found.hexdigest()}: it was changed"
            )
        source.seek(0)
        yield source


def _folder(source: Path, into: Unpacker) -> None:
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=".")
        packed.seek(0)
        into.apply(packed, str(source), whiteouts=False)
