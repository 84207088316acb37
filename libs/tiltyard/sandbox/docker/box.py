"""A docker box: a native one's socket, held by a container."""

from collections.abc import Awaitable, Callable

from tiltyard.sandbox.native.box import Keeper, NativeBox

from .container import Container
from .runtime import Demand, capabilities


class DockerBox(NativeBox):
    """See `tiltyard.sandbox.Box`."""

    def __init__(
        self,
        number: int,
        container: Container,
        path: str,
        runtime: str,
        died_of_memory: Callable[[NativeBox], Awaitable[bool]],
    ) -> None:
        super().__init__(0, number, container.socket, path, Keeper(died_of_memory))
        self.id = container.id[:12]
        self.made_in = container.made_in
        self.container = container
        descriptors = capabilities(runtime)[Demand.descriptors]
        self._link.no_descriptors = "" if descriptors.enforced else descriptors.detail
