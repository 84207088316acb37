"""A peer: how it runs a command apart, and how fast."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard.sandbox.bench.clock import Clock, Percentiles
from tiltyard.sandbox.bench.effort import Effort
from tiltyard.sandbox.bench.work import PROGRAM, PYTHON, BenchFault
from tiltyard.sandbox.native.image import Image

_CALL_SECONDS = 60

Argv = Callable[[Sequence[str]], list[str]]
"""The command line that runs a command apart"""


class Absent(Exception):
    """A peer is not here; the message says why and how to install it."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What peers are given: the image `host`, and a folder of their own that holds main.py."""

    image: Image
    folder: Path
    docker_image: str | None

    @property
    def root(self) -> Path:
        """The image's root; its /usr is empty, this machine's belongs there."""
        return self.image.store / self.image.digest / "root"

    def write(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "main.py").write_text(PROGRAM)


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run a command apart; commands start in the folder that holds main.py."""

    holds: str
    """what it holds apart"""
    run: Argv
    """in a fresh one"""
    inside: Argv | None = None
    """in one that lives"""


def call(argv: Sequence[str], ground: Ground) -> str:
    """What a command printed. Raises BenchFault when it failed."""
    ended = subprocess.run(
        *(argv,),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_CALL_SECONDS,
        check=False,
        cwd=ground.folder,
        env={**os.environ, "PATH": ground.image.path},  # a shim before the interpreter would be measured too
        text=True,
        errors="replace",
    )
    if ended.returncode:
        raise BenchFault(f"`{' '.join(argv)}` ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return ended.stdout


def figures(peer: Peer, ground: Ground, effort: Effort) -> dict[str, Any]:
    """Milliseconds, or a second."""
    found: dict[str, Any] = {"holds": peer.holds, "run_ms": _times(peer.run, ground, effort)}
    if peer.inside is not None:
        found["exec_ms"] = _times(peer.inside, ground, effort)
    found["oneshot_python_per_s"] = _rate(peer.run, ground, effort)
    return found


def _times(argv: Argv, ground: Ground, effort: Effort) -> Percentiles:
    clock = Clock()
    for _ in range(effort.runs):
        with clock.measure():
            call(argv(["true"]), ground)
    return clock.percentiles()


def _rate(argv: Argv, ground: Ground, effort: Effort) -> float:
    """One-shot Python programs, as many at once as the boxes had."""
    start = time.perf_counter()

    def worker(_: int) -> int:
        done = 0
        while time.perf_counter() < start + effort.seconds:
            if call(argv(PYTHON), ground) != "45\n":
                raise BenchFault("a peer's one-shot program printed something else than 45")
            done += 1
        return done

    with ThreadPoolExecutor(effort.at_once) as threads:
        done = sum(threads.map(worker, range(effort.at_once)))
    return round(done / (time.perf_counter() - start), 1)
