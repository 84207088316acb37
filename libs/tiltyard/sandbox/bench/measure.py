"""Everything that is measured, in one run.

Guarantees: every figure is measured in this run, on real boxes, through the public interface.
Does not: compare machines. Trust ratios within one run on a quiet machine."""

import asyncio
from collections.abc import Callable
from typing import Any

from . import peers as others
from .docker import docker
from .effort import Effort
from .live import live
from .native import native


async def measure(
    *,
    live_counts: tuple[int, ...] = (100,),
    effort: Effort | None = None,
    peers: bool = False,
    docker_image: str | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Milliseconds, MiB, or a second. `step` hears what is measured next.

    `peers`: bwrap, runc, docker and a plain process too, and the docker backend. Raises SandboxError."""
    effort = effort or Effort()
    found: dict[str, Any] = {"native": await native(effort, step), "live": {}}
    for count in live_counts:
        step(f"{count} boxes alive at once")
        found["live"][str(count)] = await live(count, effort.live_cycles)
    if peers:
        step("docker backend")
        found["docker"] = await docker(docker_image, effort)
        found["peers"] = await asyncio.to_thread(others.measure, docker_image, effort, step)
        found["ratios"] = ratios(found)
    return found


def ratios(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """How many times faster than each peer: a fresh one for `true`, one-shot Python, a command in a live one;
    and cycles a second beside the most boxes, as a share of those beside the fewest."""
    ours = found["native"]
    made: dict[str, dict[str, float]] = {}
    for name, theirs in found["peers"].items():
        if "absent" in theirs:
            continue
        made[name] = {
            "run": round(theirs["run_ms"]["p50"] / ours["cycle_ms"]["p50"], 2),
            "oneshot_python": round(
                ours["oneshot_python_per_s"] / max(theirs["oneshot_python_per_s"], 0.1), 2
            ),
        }
        if "exec_ms" in theirs:
            made[name]["exec"] = round(theirs["exec_ms"]["p50"] / ours["exec_ms"]["p50"], 2)
    counts = sorted(found["live"], key=int)
    if len(counts) > 1:
        few, many = (found["live"][count]["cycles_per_s"] for count in (counts[0], counts[-1]))
        made["live"] = {"cycles_kept": round(many / few, 3)}
    return made
