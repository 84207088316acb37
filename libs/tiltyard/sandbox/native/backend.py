"""The native backend."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tiltyard.sandbox.errors import ImageFault
from tiltyard.sandbox.limits import Limits

from .host import check_rights
from .image import STORE, host_image
from .supply import NativeSupply


class NativeBackend:
    """Linux namespaces on this host's kernel.

    Right for your own model's code on a machine that runs nothing else; for hostile code use docker with
    runsc or kata."""

    def __init__(self, store: Path = STORE) -> None:
        self._store = store

    async def open(
        self,
        *,
        image: str,
        size: int,
        limits: Limits,
        max_reuses: int = 0,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> NativeSupply:
        """Raises SandboxUnavailable, ImageFault."""
        if image != "host":
            raise ImageFault(f"image {image!r} is not known; the native backend has: host")
        check_rights()
        found = await asyncio.to_thread(host_image, self._store)
        supply = NativeSupply(
            found, size=size, limits=limits, max_reuses=max_reuses, on_ready=on_ready, on_fault=on_fault
        )
        supply.start()
        return supply
