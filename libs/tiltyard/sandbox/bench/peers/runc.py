"""runc, with an OCI bundle over the root that native boxes use."""

import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiltyard.sandbox.bench.work import LIMITS

from .peer import Absent, Ground, Peer

_SPACES = ("pid", "network", "ipc", "uts", "mount", "cgroup")
_READ_ONLY = ["rbind", "ro", "nosuid", "nodev"]


@contextmanager
def runc(ground: Ground) -> Iterator[Peer]:
    """Raises Absent."""
    program = shutil.which("runc")
    if program is None:
        raise Absent("no runc: apt-get install runc")
    states = ground.folder / "runc"
    states.mkdir()
    names = (f"tiltyard-bench-{states.parent.name}-{number}" for number in itertools.count())

    making = threading.Lock()
    bundles: dict[tuple[str, ...], Path] = {}

    def bundle_of(argv: tuple[str, ...]) -> Path:
        with making:
            if argv not in bundles:
                bundle = states / f"bundle-{len(bundles)}"
                bundle.mkdir()
                (bundle / "config.json").write_text(json.dumps(_config(ground, argv)))
                bundles[argv] = bundle
            return bundles[argv]

    def run(argv: Sequence[str]) -> list[str]:
        bundle = bundle_of(tuple(argv))
        return [program, "--root", str(states / "state"), "run", "--bundle", str(bundle), next(names)]

    try:
        yield Peer("namespaces, files and cgroups; no warm start", run)
    finally:
        _remove(program, states)


def _remove(program: str, states: Path) -> None:
    """What a run that was interrupted left."""
    for left in (states / "state").glob("*"):
        subprocess.run(
            [program, "--root", str(states / "state"), "delete", "--force", left.name],
            check=False,
            capture_output=True,
        )


def _config(ground: Ground, argv: Sequence[str]) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 1000, "gid": 1000},
            "args": list(argv),
            "env": [f"PATH={ground.image.path}"],
            "cwd": "/mnt",
            "noNewPrivileges": True,
        },
        "root": {"path": str(ground.root), "readonly": True},
        "mounts": [
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": _READ_ONLY},
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=64k"]},
            {"destination": "/opt", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "size=16m"]},
            {"destination": "/mnt", "type": "bind", "source": str(ground.folder), "options": _READ_ONLY},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in _SPACES],
            "resources": {
                "memory": {"limit": LIMITS.memory_bytes},
                "pids": {"limit": LIMITS.pids},
                "cpu": {"quota": round(LIMITS.cpus * 100_000), "period": 100_000},
            },
        },
    }
