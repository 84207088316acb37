"""A wheel, unpacked into a root for the Python that is in it.

Guarantees: the same wheel in the same root gives the same files; nothing of it runs.
Does not: compile to bytecode, nor look whether what it depends on is there.

Source: packaging.python.org, "Binary distribution format" and "Entry points specification"."""

import configparser
import os
import re
import zipfile
import zlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from io import BytesIO
from pathlib import Path
from typing import IO

from tiltyard.sandbox.errors import ImageFault

from .lock import Wheel
from .unpack import Unpacker

_BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, configparser.Error, UnicodeError, EOFError)
_MOST_ENTRY_POINTS = 1 << 20
_STARTER = """#!{python}
import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({called}())
"""


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter of a root."""

    prefix: str
    """usr or usr/local: where its programs are installed"""
    version: tuple[int, int]
    packages: str
    """where it looks for packages"""
    program: str

    @property
    def scripts(self) -> str:
        return "usr/local/bin" if "dist-packages" in self.packages else f"{self.prefix}/bin"


def find_python(root: Path) -> Python:
    """What `python3` is there. Raises ImageFault."""
    for prefix in ("usr/local", "usr"):
        link = root / prefix / "bin" / "python3"
        named = re.fullmatch(r"python3\.(\d+)", link.readlink().name) if link.is_symlink() else None
        if named is None:
            continue
        debian = prefix == "usr" and (root / "etc" / "debian_version").exists()
        name, last = named[0], "dist-packages" if debian else "site-packages"
        library = f"usr/local/lib/{name}" if debian else f"{prefix}/lib/{name}"
        return Python(prefix, (3, int(named[1])), f"{library}/{last}", f"/{prefix}/bin/{name}")
    raise ImageFault("the image has no /usr/bin/python3 or /usr/local/bin/python3 that wheels could be for")


def install(wheel: Wheel, path: Path, python: Python, into: Unpacker) -> None:
    """Raises ImageFault."""
    _check(wheel, python)
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    place, is_script = _place(member.filename, wheel, python)
                    with archive.open(member) as source:
                        head = _first_line(python, source) if is_script else b""
                        runs = is_script or member.external_attr >> 16 & 0o111
                        into.put(place, source, 0o755 if runs else 0o644, wheel.file, head=head)
            for name, text in _starters(archive, python, wheel).items():
                into.put(f"{python.scripts}/{name}", BytesIO(text.encode()), 0o755, wheel.file)
    except _BROKEN as error:
        raise ImageFault(f"{wheel.file} is no whole wheel: {error}") from error


def _check(wheel: Wheel, python: Python) -> None:
    pythons, abis, platforms = wheel.tags
    minor = python.version[1]
    fits = {"py3", f"py3{minor}", f"cp3{minor}"} & set(pythons)
    older = "abi3" in abis and any(
        int(each[3:]) <= minor for each in pythons if re.fullmatch(r"cp3\d+", each)
    )
    machine = os.uname().machine
    if not (fits or older) or not any(each == "any" or each.endswith(f"_{machine}") for each in platforms):
        raise ImageFault(f"{wheel.file} is not for Python 3.{minor} on {machine}, which the image has")


def _place(name: str, wheel: Wheel, python: Python) -> tuple[str, bool]:
    """Where a file of a wheel belongs; whether its first line names the interpreter."""
    top, _, below = name.partition("/")
    kind, _, rest = below.partition("/")
    if not top.endswith(".data"):
        return f"{python.packages}/{name}", False
    prefix = "usr/local" if "dist-packages" in python.packages else python.prefix
    folders = {
        "purelib": python.packages,
        "platlib": python.packages,
        "scripts": python.scripts,
        "data": prefix,
        "headers": f"{prefix}/include/python3.{python.version[1]}/{wheel.name}",
    }
    if kind not in folders or not rest:
        raise ImageFault(f"{wheel.file}: {name!r} is of no kind that a wheel has")
    return f"{folders[kind]}/{rest}", kind == "scripts"


def _first_line(python: Python, script: IO[bytes]) -> bytes:
    """Naming the interpreter where a wheel leaves that to us."""
    line = script.readline(4096)
    return b"#!" + python.program.encode() + b"\n" if line.startswith(b"#!python") else line


def _starters(archive: zipfile.ZipFile, python: Python, wheel: Wheel) -> dict[str, str]:
    """Programs that its entry points ask for, as an installer makes them."""
    listed = [
        name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/entry_points\.txt", name)
    ]
    found = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    found.optionxform = str  # type: ignore[assignment]
    for name in listed:
        with archive.open(name) as file:
            text = file.read(_MOST_ENTRY_POINTS + 1)
        if len(text) > _MOST_ENTRY_POINTS:
            raise ImageFault(f"{wheel.file}: its entry points are larger than {_MOST_ENTRY_POINTS:,} bytes")
        found.read_string(text.decode())
    made = {}
    for group in ("console_scripts", "gui_scripts"):
        for name, value in found.items(group) if found.has_section(group) else ():
            point = EntryPoint(name=name, value=value, group=group)
            if re.fullmatch(r"[\w.-]+", name) is None or not point.pattern.match(value) or not point.attr:
                raise ImageFault(f"{wheel.file}: the entry point {name!r} = {value!r} makes no sense")
            first = point.attr.partition(".")[0]
            made[name] = _STARTER.format(
                python=python.program, module=point.module, first=first, called=point.attr
            )
    return made
