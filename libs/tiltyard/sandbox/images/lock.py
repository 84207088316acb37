"""A lock: which packages lie above which image, each named by its bytes.

Guarantees: a lock that could mean two different roots is no lock: every package has one digest, the base too.
Does not: resolve. Whoever wrote the lock chose the versions, and named what each of them needs."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Self

from pydantic import StringConstraints, model_validator

from tiltyard.contracts.document import Document, InvalidDocument, parse
from tiltyard.sandbox.errors import ImageFault

_WHEEL = r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(-\d[^-/]*)?-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+\.whl"

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Sum = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Wheel(Document):
    """A wheel. Source distributions are not locked: building one runs it."""

    file: Annotated[str, StringConstraints(pattern=f"^{_WHEEL}$")]
    """name-version-python-abi-platform.whl"""
    sha256: Sum

    @property
    def names(self) -> tuple[str, ...]:
        """What its file may be called."""
        return (self.file,)

    @property
    def name(self) -> str:
        """In the spelling of indexes."""
        return re.sub(r"[-_.]+", "-", self.file.split("-")[0]).lower()

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.name}=={self.file.split('-')[1]}"

    @property
    def title(self) -> str:
        return f"wheel {self.name}"

    @property
    def label(self) -> str:
        return f"{self.file} (sha256 {self.sha256})"

    @property
    def tags(self) -> tuple[list[str], list[str], list[str]]:
        """Pythons, ABIs and platforms that it is for."""
        python, abi, platform = self.file.removesuffix(".whl").split("-")[-3:]
        return python.split("."), abi.split("."), platform.split(".")


class Deb(Document):
    """A Debian package, named as `Packages` files name it."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]+$")]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+:~-]+$")]
    architecture: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")]
    """amd64, arm64, all, …"""
    sha256: Sum
    without_scripts: bool = False
    """what its maintainer scripts would do at installation is knowingly left out"""

    @property
    def names(self) -> tuple[str, ...]:
        """What its file may be called: apt writes an epoch, archives leave it out."""
        versions = (self.version.replace(":", "%3a"), re.sub(r"^\d+:", "", self.version))
        return tuple(f"{self.name}_{version}_{self.architecture}.deb" for version in dict.fromkeys(versions))

    @property
    def requirement(self) -> str:
        """As apt-get takes it."""
        return f"{self.name}:{self.architecture}={self.version}"

    @property
    def title(self) -> str:
        return f"deb {self.name}"

    @property
    def label(self) -> str:
        return f"{self.names[0]} (sha256 {self.sha256})"


Package = Wheel | Deb


class Lock(Document):
    """What an image is made of."""

    base: Digest
    """an image of the store"""
    digest: Digest | None = None
    """what must come of it; None: whatever does"""
    deb: tuple[Deb, ...] = ()
    wheel: tuple[Wheel, ...] = ()

    @property
    def packages(self) -> tuple[Package, ...]:
        """Lowest first."""
        return (*self.deb, *self.wheel)

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        counts = Counter(each.title for each in self.packages)
        if twice := [title for title, count in counts.items() if count > 1]:
            raise ValueError(f"{', '.join(twice)}: locked more than once")
        return self

    def toml(self) -> str:
        """As a file."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in _plain(self, "base", "digest")]
        for kind, packages in (("deb", self.deb), ("wheel", self.wheel)):
            for package in packages:
                lines += ["", f"[[{kind}]]", *(f"{k} = {json.dumps(v)}" for k, v in _plain(package))]
        return "\n".join(lines) + "\n"


def _plain(document: Document, *keys: str) -> list[tuple[str, object]]:
    return list(document.model_dump(exclude_defaults=True, include=set(keys) or None).items())


def is_lock(path: Path) -> bool:
    """By its name, something.toml."""
    return path.suffix == ".toml" and path.is_file()


def read_lock(path: Path) -> Lock:
    """Raises ImageFault."""
    try:
        return parse(Lock, tomllib.loads(path.read_text()), what=f"the lock {path}")
    except (OSError, ValueError) as error:
        raise ImageFault(str(error) if isinstance(error, InvalidDocument) else f"{path}: {error}") from error


def differences(made_of: Lock, lock: Lock) -> list[str]:
    """What tells two locks apart, in words; the order of packages does not count."""
    found = [] if made_of.base == lock.base else [f"base {made_of.base} instead of {lock.base}"]
    here = {each.title: each for each in made_of.packages}
    there = {each.title: each for each in lock.packages}
    found += [f"{title} is missing" for title in there.keys() - here.keys()]
    found += [f"{title} is not in the lock" for title in here.keys() - there.keys()]
    for title in here.keys() & there.keys():
        if here[title] != there[title]:
            found.append(f"{here[title].label} instead of {there[title].label}")
    return sorted(found)
