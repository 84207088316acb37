"""A docker box: a native one's socket, held by a container."""

from collections.abc import Awaitable, Callable, Sequence

from tiltyard.sandbox.errors import CapabilityRefused
from tiltyard.sandbox.native.box import NativeBox

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
        super().__init__(0, number, container.socket, path, died_of_memory)
        self.id = container.id[:12]
        self.made_in = container.made_in
        self.container = container
        self._descriptors = capabilities(runtime)[Demand.descriptors]

    async def _send(self, frame: bytes, descriptors: Sequence[int]) -> None:
        if descriptors and not self._descriptors.enforced:
            raise CapabilityRefused(f"exec(fds=…) in box {self.id}: {self._descriptors.detail}")
        await super()._send(frame, descriptors)
