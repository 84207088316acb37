"""All peers, one after another.

Guarantees: a peer that is not here is told with the reason and the cure; nothing of a peer is left.
Does not: make them equal. `holds` says what each holds apart."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiltyard.sandbox.bench.effort import Effort
from tiltyard.sandbox.bench.work import BenchFault
from tiltyard.sandbox.native.image import host_image

from .bwrap import bwrap
from .docker import docker
from .fork import fork
from .peer import Absent, Ground, figures
from .runc import runc

_PEERS = {"fork": fork, "bwrap": bwrap, "runc": runc, "docker": docker}


def measure(docker_image: str | None, effort: Effort, step: Callable[[str], None]) -> dict[str, Any]:
    """By the peer's name: its figures, or `{"absent": why}`."""
    return {name: _one(name, docker_image, effort, step) for name in _PEERS}


def _one(name: str, docker_image: str | None, effort: Effort, step: Callable[[str], None]) -> dict[str, Any]:
    step(f"peers: {name}")
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-") as folder:
        ground = Ground(host_image(), Path(folder), docker_image)
        ground.write()
        try:
            with _PEERS[name](ground) as peer:
                return figures(peer, ground, effort)
        except Absent as error:
            return {"absent": str(error)}
        except BenchFault as error:
            return {"absent": f"it does not work here: {error}"}
