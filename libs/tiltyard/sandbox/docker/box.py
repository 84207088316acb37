"""A docker box: a native one's socket, held by a container."""

from tiltyard.sandbox.capability import Demand
from tiltyard.sandbox.native.box import Keeper, NativeBox

from .container import Container
from .runtime import capabilities
from .survey import comparable


class DockerBox(NativeBox):
    """See `tiltyard.sandbox.Box`."""

    def __init__(self, number: int, container: Container, path: str, runtime: str, keeper: Keeper) -> None:
        super().__init__(0, number, container.socket, path, keeper)
        self.made_in = container.made_in
        self._hold(container)
        descriptors = capabilities(runtime)[Demand.descriptors]
        self._link.no_descriptors = "" if descriptors.enforced else descriptors.detail

    def _hold(self, container: Container) -> None:
        self.id = container.id[:12]
        self.container = container

    def become(self, fresh: NativeBox) -> None:
        assert isinstance(fresh, DockerBox)
        super().become(fresh)
        self._hold(fresh.container)

    async def survey(self) -> str:
        return comparable(await super().survey())
