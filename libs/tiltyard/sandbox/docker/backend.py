"""The docker backend."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from tiltyard.sandbox.capability import Capability, Demand
from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.native.toolchain import CompilerFault, current_helpers

from . import owner
from .container import Recipe
from .daemon import Daemon
from .runtime import capabilities, refuse_unenforced
from .supply import DockerSupply


class DockerBackend:
    """Containers of a daemon on this machine, by any runtime that it has: runc, or runsc for hostile code.

    `accept` names demands that the runtime cannot enforce and the caller does without. Whoever may use the
    daemon's socket is as good as root on this machine; boxes are not given it."""

    def __init__(
        self, runtime: str = "runc", *, url: str | None = None, accept: Collection[Demand] = ()
    ) -> None:
        """`url` None: DOCKER_HOST, or docker's usual socket. Raises CapabilityRefused."""
        self.runtime = runtime
        self._able = capabilities(runtime)
        self._accept = frozenset(accept)
        self._url = url

    def capabilities(self) -> Mapping[Demand, Capability]:
        """What its boxes are held to, and why not to the rest."""
        return self._able

    async def open(
        self,
        *,
        image: str,
        size: int,
        limits: Limits,
        max_reuses: int = 0,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> DockerSupply:
        """`max_reuses` holds by itself: a container serves one box. Raises SandboxUnavailable,
        CapabilityRefused, ImageFault."""
        refuse_unenforced(self.runtime, self._accept)
        if image == "host":
            raise ImageFault(
                "image 'host' is the native backend's: name an image that docker has (`docker images`)"
            )
        daemon = Daemon(self._url)
        try:
            recipe = await asyncio.to_thread(self._prepare, daemon, image, limits)
        except BaseException:
            daemon.close()
            raise
        supply = DockerSupply(daemon, recipe, size=size, on_ready=on_ready, on_fault=on_fault)
        supply.start()
        return supply

    def _prepare(self, daemon: Daemon, image: str, limits: Limits) -> Recipe:
        try:
            init = current_helpers().init
        except CompilerFault as error:
            raise SandboxUnavailable(f"the sandbox helpers are not built: {error}") from error
        daemon.require_runtime(self.runtime)
        found = daemon.find_image(image)
        mine = owner.enter()
        try:
            owner.sweep(daemon, mine.realm)
        except BaseException:
            mine.leave()
            raise
        return Recipe(found, self.runtime, limits, init, mine)
