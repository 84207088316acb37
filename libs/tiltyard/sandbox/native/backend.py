"""The native backend."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from tiltyard.sandbox.capability import Capability, Demand
from tiltyard.sandbox.images.store import ImageStore
from tiltyard.sandbox.limits import Limits

from .capacity import check_capacity
from .host import check_rights
from .image import STORE, Image, host_image
from .supply import NativeSupply
from .toolchain import Helpers

SERVED: Mapping[Demand, Capability] = {
    Demand.leftovers: Capability(True, "its PID 1 kills what a command leaves"),
    Demand.streaming: Capability(True, "sent over the box's socket as it comes"),
    Demand.descriptors: Capability(True, "passed over the box's socket"),
    Demand.background: Capability(True, "each supervised by a copy of the box's PID 1"),
    Demand.ports: Capability(True, "opened inside, passed over the box's socket"),
    Demand.snapshots: Capability(True, "a tar of the files"),
}
"""What a box's PID 1, tilt-init, does wherever it runs."""
_ABLE: Mapping[Demand, Capability] = {
    **SERVED,
    Demand.memory: Capability(True, "cgroup, without swap"),
    Demand.pids: Capability(True, "cgroup"),
    Demand.cpus: Capability(True, "cgroup"),
    Demand.disk: Capability(True, "one sized tmpfs"),
    Demand.inodes: Capability(True, "one sized tmpfs"),
    Demand.cpu_time: Capability(True, "counted by the cgroup"),
    Demand.counters: Capability(True, "read from the cgroup"),
    Demand.pause: Capability(True, "the payload is frozen by its cgroup"),
    Demand.kernel: Capability(
        False, "boxes share this machine's kernel: use docker with runsc for hostile code"
    ),
}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NativeBackend:
    """Linux namespaces on this host's kernel.

    Right for your own model's code on a machine that runs nothing else; for hostile code use docker with
    runsc."""

    def __init__(self, store: Path = STORE, *, helpers: Helpers | None = None) -> None:
        """`helpers`: others than the current ones, as the abuse suite's with one defence left out."""
        self._store = store
        self._helpers = helpers

    def capabilities(self) -> Mapping[Demand, Capability]:
        """What its boxes are held to, and why not to the rest."""
        return _ABLE

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
        """`image`: host, or a name or digest of the store. Raises SandboxUnavailable, ImageFault."""
        check_rights()
        check_capacity(size)
        found = await asyncio.to_thread(self._find, image)
        supply = NativeSupply(
            found,
            size=size,
            limits=limits,
            max_reuses=max_reuses,
            on_ready=on_ready,
            on_fault=on_fault,
            helpers=self._helpers,
        )
        supply.start()
        return supply

    def _find(self, name: str) -> Image:
        """tilt-host holds it, so that nobody prunes it."""
        if name == "host":
            return host_image(self._store)
        digest = ImageStore(self._store).resolve(name)
        return Image(digest.removeprefix("sha256:"), self._store, _PATH)
