"""The image `host`: this machine's /usr, its interpreter's standard library, and an /etc of our own making.

Guarantees: the image holds no installed package, nothing of this project, no file of the host outside /usr
(packages hidden) and the interpreter; it is made once and never changed: another interpreter gives another
digest.
Does not: copy /usr. That is bound read-only when a box is made."""

import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable

STORE = Path("/var/lib/tiltyard/images")

_RECIPE = "3"
_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FOLDERS = ("usr", "proc", "sys", "dev", "etc", "run", "var", "home", "root", "mnt", "opt", "srv")
_NO_STDLIB = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "lib2to3",
    "ensurepip",
}
_ETC = {
    "passwd": (
        "root:x:0:0:root:/:/bin/sh\nbox:x:1000:1000:box:/box:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/bin/false\n"
    ),
    "group": "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "hostname": "box\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    "resolv.conf": "",
    "shells": "/bin/sh\n/bin/bash\n",
}


@dataclass(frozen=True, slots=True)
class Image:
    """A read-only root in a store that only root may write."""

    digest: str
    store: Path
    path: str
    """what PATH is in its boxes"""


@dataclass(frozen=True, slots=True)
class _Interpreter:
    prefix: Path
    name: str
    """python3.11"""

    @property
    def borrowed(self) -> bool:
        """Part of /usr, where the box sees it anyway."""
        return self.prefix == Path("/usr")

    @property
    def stdlib(self) -> Path:
        return self.prefix / "lib" / self.name


def _interpreter() -> _Interpreter:
    return _Interpreter(Path(sys.base_prefix).resolve(), f"python{sys.version_info[0]}.{sys.version_info[1]}")


def host_image(store: Path = STORE) -> Image:
    """The image, made now if this interpreter's does not exist yet. Raises SandboxUnavailable, ImageFault."""
    python = _interpreter()
    digest = _digest(python)
    path = "/usr/bin:/bin" if python.borrowed else f"{python.prefix}/bin:/usr/bin:/bin"
    image = Image(digest, store, path)
    if not (store / digest / "root").is_dir():
        _make(store, digest, python)
    return image


def _digest(python: _Interpreter) -> str:
    """Names the image by what goes into it: our recipe and each file's path, size and time."""
    digest = hashlib.sha256(f"{_RECIPE}\0{python.prefix}\0{sys.version}\0{sorted(_ETC.items())}".encode())
    for source, _ in _python_files(python):
        found = source.lstat()
        digest.update(f"{source}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _python_files(python: _Interpreter) -> list[tuple[Path, Path]]:
    """Files to copy and where to, below the prefix; empty when the box sees the interpreter in /usr."""
    if python.borrowed:
        return []
    found = [python.prefix / "bin" / python.name, *(python.prefix / "lib").glob("libpython*.so*")]
    for folder, names, files in os.walk(python.stdlib):
        names[:] = sorted(name for name in names if name not in _NO_STDLIB and not name.startswith("config-"))
        found += [
            Path(folder, name)
            for name in sorted(files)
            if not name.endswith((".opt-1.pyc", ".opt-2.pyc", ".a"))
        ]
    return [(source, source.relative_to(python.prefix)) for source in found]


def _make(store: Path, digest: str, python: _Interpreter) -> None:
    """Builds beside the store and moves into place whole; who loses a race finds the winner's."""
    try:
        store.mkdir(parents=True, exist_ok=True, mode=0o755)
        scratch = Path(tempfile.mkdtemp(dir=store, prefix=".making-"))
    except OSError as error:
        raise SandboxUnavailable(
            f"cannot write the image store {store}: {error.strerror}; "
            "run `tiltyard sandbox doctor` once as root"
        ) from error
    try:
        scratch.chmod(0o755)
        _fill(scratch, python)
        scratch.rename(store / digest)
    except OSError as error:
        if not (store / digest / "root").is_dir():
            raise ImageFault(f"cannot make the image `host` in {store}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fill(scratch: Path, python: _Interpreter) -> None:
    root, local = scratch / "root", scratch / "local"
    for folder in (root, local, *(root / name for name in _FOLDERS)):
        folder.mkdir()
    for name in _LINKED:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())
        elif Path("/", name).is_dir():
            raise ImageFault(
                f"/{name} is a folder of its own: the image `host` needs a merged /usr (usrmerge)"
            )
    (root / "var" / "tmp").symlink_to("../tmp")
    _fill_etc(root / "etc")
    below = python.prefix.relative_to("/")
    (scratch / "python").symlink_to(python.prefix / "bin" / "python3")  # which tilt-host keeps warm
    target = local / below.relative_to("usr/local") if below.is_relative_to("usr/local") else root / below
    _copy_python(python, target)


def _fill_etc(etc: Path) -> None:
    for name, text in _ETC.items():
        (etc / name).write_text(text)
    if Path("/etc/ld.so.cache").exists():
        shutil.copyfile("/etc/ld.so.cache", etc / "ld.so.cache")
    alternatives = Path("/etc/alternatives")
    (etc / "alternatives").mkdir()
    for link in sorted(alternatives.iterdir()) if alternatives.is_dir() else []:
        if link.is_symlink() and str(link.readlink()).startswith("/usr/"):
            (etc / "alternatives" / link.name).symlink_to(link.readlink())


def _copy_python(python: _Interpreter, target: Path) -> None:
    for source, below in _python_files(python):
        (target / below).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / below, follow_symlinks=False)
    for name in ("python3", "python") if not python.borrowed else ():
        (target / "bin" / name).symlink_to(python.name)
