"""A Debian package's files, unpacked into a root.

Guarantees: nothing of it runs, no maintainer script, no trigger; one that has scripts is refused unless the
lock says that it does without them.
Does not: what those would do (alternatives, users, caches), nor write dpkg's records, nor look whether what
it depends on is there."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tiltyard.contracts.document import InvalidDocument, parse
from tiltyard.sandbox.errors import ImageFault

from .lock import Deb
from .unpack import Unpacker

_SCRIPTS = {"preinst", "postinst"}
_FIELDS = ("Package", "Version", "Architecture")
_OURS = {"x86_64": "amd64", "aarch64": "arm64"}


def read_deb(path: Path, sha256: str) -> Deb:
    """What a file is. Raises ImageFault."""
    fields = _fields(path)
    found = {
        "name": fields.get("Package"),
        "version": fields.get("Version"),
        "architecture": fields.get("Architecture"),
        "sha256": sha256,
        "without_scripts": bool(scripts_of(path)),
    }
    try:
        return parse(Deb, found, what=f"the package {path}")
    except InvalidDocument as error:
        raise ImageFault(str(error)) from error


def scripts_of(path: Path) -> list[str]:
    """Its maintainer scripts that an installation would run. Raises ImageFault."""
    with _streamed("--ctrl-tarfile", str(path)) as control:
        try:
            with tarfile.open(fileobj=control, mode="r|") as tar:
                return sorted(_SCRIPTS & {member.name.removeprefix("./") for member in tar})
        except tarfile.TarError as error:
            raise ImageFault(f"{path.name} is no whole package: {error}") from error


def install(deb: Deb, path: Path, into: Unpacker) -> None:
    """Raises ImageFault."""
    found = read_deb(path, deb.sha256)
    machine = os.uname().machine
    if found.requirement != deb.requirement:
        raise ImageFault(f"{path.name} is {found.requirement}, and the lock says {deb.requirement}")
    if deb.architecture not in ("all", _OURS.get(machine, machine)):
        raise ImageFault(f"{deb.requirement} is not for {machine}, which this is")
    if found.without_scripts and not deb.without_scripts:
        raise ImageFault(
            f"{deb.requirement} has {' and '.join(scripts_of(path))}, and no script runs for a lock: "
            "say there `without_scripts = true` if it does without them, or use a Dockerfile"
        )
    with _streamed("--fsys-tarfile", str(path)) as files:
        into.apply(files, deb.requirement, whiteouts=False)


def _fields(path: Path) -> dict[str, str]:
    words = ["dpkg-deb", "-f", str(path), *_FIELDS]
    try:
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ImageFault(f"Debian's packages need dpkg-deb on this machine: {error}") from error
    if ended.returncode:
        raise ImageFault(f"{path.name} is no Debian package: {ended.stderr.strip()}")
    return dict(line.split(": ", 1) for line in ended.stdout.splitlines() if ": " in line)


@contextmanager
def _streamed(*words: str) -> Iterator[IO[bytes]]:
    """What dpkg-deb writes, ended with whoever reads. A package that is cut off gives a tar that is."""
    with subprocess.Popen(
        ["dpkg-deb", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()
