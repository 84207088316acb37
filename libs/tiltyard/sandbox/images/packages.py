"""The files of a lock's packages: from folders, or from what pip and apt are configured to use.

Guarantees: whatever is handed out has the digest that the lock names; every one that has not is told.
Does not: run anything of a package. No wheel is built, no script of a package is started."""

import hashlib
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from tiltyard.contracts.document import faults_of
from tiltyard.sandbox.errors import ImageFault

from .deb import read_deb
from .lock import Deb, Lock, Package, Wheel

_FETCH_SECONDS = 1800
_LAST_WORDS = 1500


@contextmanager
def gathered(lock: Lock, folders: Sequence[Path] = ()) -> Iterator[dict[Package, Path]]:
    """The file of each package; without `folders` from wherever pip and apt are configured to look.

    Raises ImageFault."""
    if folders:
        yield _found(lock, folders)
        return
    with tempfile.TemporaryDirectory(prefix="tiltyard-packages-") as scratch:
        _fetch_wheels(lock.wheel, Path(scratch))
        _fetch_debs(lock.deb, Path(scratch))
        yield _found(lock, [Path(scratch)])


def lock_of(base: str, folders: Sequence[Path]) -> Lock:
    """Of every wheel and Debian package that is there. Raises ImageFault."""
    files = sorted((file for folder in folders for file in folder.iterdir()), key=lambda file: file.name)
    try:
        return Lock(
            base=base,
            deb=tuple(read_deb(file, _sum(file)) for file in files if file.suffix == ".deb"),
            wheel=tuple(Wheel(file=file.name, sha256=_sum(file)) for file in files if file.suffix == ".whl"),
        )
    except ValidationError as error:
        faults = "; ".join(fault.message for fault in faults_of(error))
        raise ImageFault(f"{', '.join(map(str, folders))}: {faults}") from error


def _sum(path: Path) -> str:
    """Hex SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _found(lock: Lock, folders: Sequence[Path]) -> dict[Package, Path]:
    found: dict[Package, Path] = {}
    wrong: list[str] = []
    for package in lock.packages:
        places = [folder / name for folder in folders for name in package.names]
        place = next((place for place in places if place.is_file()), None)
        if place is None:
            wrong.append(f"{package.names[0]} is not there")
        elif (seen := _sum(place)) != package.sha256:
            wrong.append(f"{place.name} has the sha256 {seen}, and the lock says {package.sha256}")
        else:
            found[package] = place
    if wrong:
        where = ", ".join(map(str, folders))
        raise ImageFault(f"what is in {where} is not what was locked: {'; '.join(wrong)}")
    return found


def _fetch_wheels(wheels: Sequence[Wheel], into: Path) -> None:
    """One call of pip for all that have the same tags."""
    alike: defaultdict[tuple[str, ...], list[Wheel]] = defaultdict(list)
    for wheel in wheels:
        alike[_choice(wheel)].append(wheel)
    for choice, those in alike.items():
        wanted = into / "requirements.txt"
        wanted.write_text("".join(f"{each.requirement} --hash=sha256:{each.sha256}\n" for each in those))
        _run(
            *(sys.executable, "-m", "pip", "download", "-q", "--no-input", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes", *choice),
            *("-d", str(into), "-r", str(wanted)),
        )


def _choice(wheel: Wheel) -> tuple[str, ...]:
    """pip's options that let it choose this wheel, whatever runs pip."""
    pythons, abis, platforms = wheel.tags
    kind, version = pythons[-1][:2], pythons[-1][2:]
    chosen = ["--implementation", kind, "--python-version", version]
    chosen += [word for abi in abis for word in ("--abi", abi)]
    chosen += [word for platform in platforms if platform != "any" for word in ("--platform", platform)]
    return tuple(chosen)


def _fetch_debs(debs: Sequence[Deb], into: Path) -> None:
    if debs:
        _run(
            *("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root"),
            *(deb.requirement for deb in debs),
            cwd=into,
        )


def _run(*words: str, cwd: Path | None = None) -> None:
    what = "pip" if "pip" in words else words[0]
    try:
        ended = subprocess.run(
            words, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=_FETCH_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageFault(f"{what} cannot bring the packages: {error}; name folders that have them") from error
    if ended.returncode:
        said = (ended.stdout + ended.stderr).decode(errors="replace").strip()[-_LAST_WORDS:]
        raise ImageFault(f"{what} did not bring what was locked: {said}")
