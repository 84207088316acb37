"""One direction of one connection: bytes in, bytes out, as slowly as the network's shape wants it.

Guarantees: order; a reader that does not read stops the writer; what is counted was passed on."""

import asyncio
from collections.abc import Callable

from .record import Reason, refused
from .shape import Bucket, Luck, Shape

_UNDER_WAY = 64


class Lane:
    """Into one writer."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        *,
        shape: Shape,
        bucket: Bucket,
        luck: Luck,
        most: int,
        count: Callable[[int], None],
    ) -> None:
        """`most`: bytes that it carries. `count` is told of each part."""
        self._writer = writer
        self._shape = shape
        self._bucket = bucket
        self._luck = luck
        self._left = most
        self._count = count
        self._under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)
        self._deliverer: asyncio.Task[None] | None = None

    async def send(self, data: bytes) -> None:
        """Raises Fault above what it may carry, Reset, OSError."""
        if len(data) > self._left:
            raise refused(Reason.too_many_bytes, "it carried more bytes than one connection may")
        self._left -= len(data)
        if self._shape.is_plain:
            await self._write(data)
            return
        size = self._shape.part_bytes
        for start in range(0, len(data), size):
            await self._send_part(data[start : start + size])

    async def finish(self) -> None:
        """Everything is delivered, and the other side is told that no more comes."""
        if self._deliverer is not None:
            await self._give((0.0, b""))
            await self._deliverer
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def stop(self) -> None:
        if self._deliverer is not None:
            self._deliverer.cancel()

    async def _send_part(self, part: bytes) -> None:
        await self._bucket.take(len(part))
        await self._luck.meet(len(part))
        if not self._shape.latency_ms:
            await self._write(part)
            return
        loop = asyncio.get_running_loop()
        if self._deliverer is None:
            self._deliverer = loop.create_task(self._deliver())
            self._deliverer.add_done_callback(lambda task: task.cancelled() or task.exception())
        await self._give((loop.time() + self._shape.latency_ms / 2000, part))

    async def _give(self, part: tuple[float, bytes]) -> None:
        """Waits for room, or for the end of whoever delivers."""
        assert self._deliverer is not None
        putting = asyncio.ensure_future(self._under_way.put(part))
        try:
            await asyncio.wait((putting, self._deliverer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
        if self._deliverer.done():
            self._deliverer.result()

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, part = await self._under_way.get()
            if not part:
                return
            await asyncio.sleep(due - loop.time())
            await self._write(part)

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self._count(len(data))
