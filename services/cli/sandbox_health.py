"""`tiltyard sandbox health`: whether boxes can be had on this machine now."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from services.cli.boxes import made_by, source
from services.cli.output import Output, reporting
from tiltyard.sandbox import BreakerState, Canary, Limits, PoolHealth, SandboxBackend, SandboxError, WarmPool
from tiltyard.sandbox.capability import Demand

_SONGS = 3
"""One sets what must be said, the others must say the same."""
_LIMITS = Limits(memory_mb=64, pids=16, disk_mb=16, inodes=1024)


@click.command("health")
@source
@reporting
def health_command(out: Output, backend: str, runtime: str | None, image: str | None) -> int:
    """Make a few sandboxes, compare what they say, look at the machine's pressure. Exit code 1: ill.

    A runner's own pools watch the same while they run: their breaker lends nothing for a while when too much
    fails or memory is short, and `acquire` says why and when it is tried again.

    \b
      tiltyard sandbox health
      tiltyard sandbox health --backend docker --image debian:12 --json
    """
    try:
        accept = () if backend == "native" else tuple(Demand)
        backend_, image = made_by(backend, runtime, image, accept)
        health = asyncio.run(_examine(backend_, image))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    well = health.state is BreakerState.closed and not health.drift
    out.result({**asdict(health), "well": well}, lambda: out.table(["", "found"], _rows(health)))
    return 0 if well else 1


async def _examine(backend: SandboxBackend, image: str) -> PoolHealth:
    pool = WarmPool(backend=backend, image=image, size=2, limits=_LIMITS, canary=Canary())
    async with pool:
        for _ in range(_SONGS - 1):
            await pool.examine()
        return await pool.examine()


def _rows(health: PoolHealth) -> list[list[Any]]:
    since = (
        "" if health.since is None else datetime.fromtimestamp(health.since, UTC).isoformat("T", "seconds")
    )
    told = [f"{name} {value:.0f} %" for name, value in sorted(health.pressure.items())]
    rows: list[list[Any]] = [
        ["boxes are lent", "yes" if health.state is BreakerState.closed else f"{health.state} since {since}"],
        ["why not", health.reason],
        ["tried again in", f"{health.retry_in:.0f} s" if health.retry_in else ""],
        ["made or served", f"{health.succeeded}, failed {health.failed}"],
        ["pressure, last 10 s", ", ".join(told) or "this kernel does not tell (no PSI)"],
        ["canary", f"asked {health.canaries}, changed {health.quarantined}"],
        ["changed to", health.drift],
    ]
    return [row for row in rows if row[1]]
