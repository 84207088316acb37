"""Native boxes without one of their walls, in which an attack must succeed. For tests alone.

Guarantees: everything but the walls that were named is what is used.
Does not: weaken anything else: the helpers lie in a folder of their own, and are started by this backend
alone."""

import io
import os
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiltyard.sandbox.backend import Box, Supply
from tiltyard.sandbox.capability import Capability, Demand
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.native import wire
from tiltyard.sandbox.native.backend import NativeBackend
from tiltyard.sandbox.native.box import NativeBox
from tiltyard.sandbox.native.toolchain import compile_helpers
from tiltyard.sandbox.paths import Root
from tiltyard.sandbox.result import ExecResult

from .walls import Wall


class CarelessBox:
    """A native box that does without some of what Python checks; its other calls are the box's own."""

    def __init__(self, box: Box, walls: Collection[Wall]) -> None:
        assert isinstance(box, NativeBox)
        self.inner = box
        self._walls = walls

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def exec(self, argv: Sequence[str | bytes], **options: Any) -> ExecResult:
        env = dict(options.pop("env", None) or {})
        if Wall.environment in self._walls:
            env = {**os.environ, "TILTYARD_SECRET": "x", **env}
        if Wall.cpu_count in self._walls:
            env["OMP_NUM_THREADS"] = str(os.cpu_count())
        return await self.inner.exec(argv, env=env, **options)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if Wall.path_checks not in self._walls:
            await self.inner.write(path, data, mode)
            return
        record = wire.file_record(Root.home, path.encode(errors="surrogatepass"), data, mode)
        await self.inner._link.ask(lambda ident: wire.write_frame(ident, record))

    async def tar_in(self, archive: bytes, path: str = "", **options: Any) -> int:
        if Wall.archive_checks not in self._walls:
            return await self.inner.tar_in(archive, path, **options)
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            names = opened.getnames()
        await self.inner.exec(["tar", "-x"], stdin=archive)
        return len(names)

    async def reset(self) -> None:
        if Wall.reset not in self._walls:
            await self.inner.reset()


class CarelessSupply:
    """Its boxes, as `CarelessBox`."""

    def __init__(self, supply: Supply, walls: Collection[Wall]) -> None:
        self._supply = supply
        self._walls = walls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._supply, name)

    def take(self) -> Any:
        box = self._supply.take()
        return None if box is None else CarelessBox(box, self._walls)

    def discard(self, box: Any) -> None:
        if Wall.release not in self._walls:
            self._supply.discard(box.inner)


class WeakenedBackend:
    """Boxes without `walls`. `folder`: where the helpers are built, or were for the same walls."""

    def __init__(self, walls: Collection[Wall], folder: Path) -> None:
        """Raises CompilerFault."""
        self._walls = frozenset(walls)
        names = sorted(wall.value for wall in walls if wall.native)
        self._native = NativeBackend(helpers=compile_helpers(folder, without=names) if names else None)

    def capabilities(self) -> Mapping[Demand, Capability]:
        return self._native.capabilities()

    async def open(
        self,
        *,
        image: str,
        size: int,
        limits: Limits,
        max_reuses: int = 0,
        on_ready: Callable[[], None],
        on_fault: Callable[[Exception], None],
    ) -> Supply:
        supply = await self._native.open(
            image=image,
            size=size,
            limits=limits,
            max_reuses=max_reuses,
            on_ready=on_ready,
            on_fault=on_fault,
        )
        return CarelessSupply(supply, self._walls)  # type: ignore[return-value]
