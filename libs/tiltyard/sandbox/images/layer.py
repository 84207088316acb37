"""A lock's packages above its base: the layer that makes an image of both.

Guarantees: equal locks give equal roots, on whatever machine and wherever the packages came from.
Does not: start anything of the image or of a package."""

from collections.abc import Sequence
from pathlib import Path

from . import deb, wheel
from .lock import Lock
from .packages import gathered
from .unpack import Unpacker


def unpack_lock(lock: Lock, base: Path, root: Path, into: Unpacker, folders: Sequence[Path]) -> None:
    """`base`: the root of the lock's base, `root`: what `into` unpacks to. Raises ImageFault."""
    with gathered(lock, folders) as files:
        into.adopt(base)
        for package in lock.deb:
            deb.install(package, files[package], into)
        python = wheel.find_python(root) if lock.wheel else None
        for package in lock.wheel:
            assert python is not None
            wheel.install(package, files[package], python, into)
