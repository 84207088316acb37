"""Figures of the docker backend, where a daemon answers and has an image for it."""

import importlib.util
from typing import Any

from tiltyard.sandbox.docker.backend import DockerBackend
from tiltyard.sandbox.errors import SandboxError
from tiltyard.sandbox.pool import WarmPool

from .clock import Clock
from .effort import Effort
from .work import LIMITS, execs, full


async def docker(image: str | None, effort: Effort) -> dict[str, Any]:
    """Milliseconds; `{"absent": why}` where it cannot be measured."""
    if importlib.util.find_spec("docker") is None:
        return {"absent": "the docker SDK is not installed: pip install 'tiltyard[docker]'"}
    if image is None:
        return {"absent": "no image was named: give --docker-image, one of `docker images` with /bin/true"}
    try:
        return await _measure(image, effort)
    except SandboxError as error:
        return {"absent": str(error)}


async def _measure(image: str, effort: Effort) -> dict[str, Any]:
    claimed = Clock()
    async with WarmPool(size=4, limits=LIMITS, image=image, backend=DockerBackend("runc")) as pool:
        for _ in range(effort.claims):
            await full(pool)
            with claimed.measure():
                loan = pool.acquire()
                await loan.__aenter__()
            await loan.__aexit__(None, None, None)
        return {"claim_ms": claimed.percentiles(), "exec_ms": await execs(pool, effort.claims)}
