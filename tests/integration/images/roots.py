"""Roots for images of the tests' own."""

import shutil
from pathlib import Path


def tiny_root(folder: Path) -> Path:
    """A root with a shell and what it needs of this machine."""
    for name in ("bin", "lib", "lib64"):
        (folder / name).mkdir(parents=True)
    libraries = [Path("/lib/x86_64-linux-gnu/libc.so.6"), Path("/lib64/ld-linux-x86-64.so.2")]
    shutil.copy("/bin/sh", folder / "bin/sh")
    shutil.copy(libraries[0], folder / "lib/libc.so.6")
    shutil.copy(libraries[1], folder / "lib64/ld-linux-x86-64.so.2")
    (folder / "mark").write_text("of this image\n")
    return folder
