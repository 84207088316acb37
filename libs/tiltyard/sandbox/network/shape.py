"""A poor network, imposed on what is let out.

Guarantees: what passes is whole and in order; the same seed and the same connections see the same luck.
Does not: lose packets. A proxy carries byte streams, in which a lost packet is a delay: loss shows here as a
stall, or as a connection that is reset, which is how a program meets it too."""

import asyncio
import math
import random
from dataclasses import dataclass, fields

from tiltyard.sandbox.errors import InvalidNetwork

_MIB = 1 << 20
_LEAST_PART, _MOST_PART = 512, 16 << 10
_PARTS_A_SECOND = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How bad it is. The bandwidth is shared by all connections of one box, each direction for itself."""

    kib_per_second: float = 0.0
    """KiB a second, each way; 0: as fast as it goes"""
    latency_ms: float = 0.0
    """added to every round trip, half of it each way; up to 1 MiB is under way at once"""
    resets_per_mib: float = 0.0
    """connections that are reset, on average, for each MiB carried"""
    stalls_per_mib: float = 0.0
    """pauses of `stall_seconds`, on average, for each MiB carried"""
    stall_seconds: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidNetwork."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and 0 <= value <= 1e9):
                raise InvalidNetwork(f"shape {each.name} is {value}: give 0 or more")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is imposed."""
        return not (self.kib_per_second or self.latency_ms or self.resets_per_mib or self.stalls_per_mib)

    @property
    def part_bytes(self) -> int:
        """Bytes that are carried at a time, so that connections share the bandwidth."""
        if not self.kib_per_second:
            return _MOST_PART
        return min(_MOST_PART, max(_LEAST_PART, int(self.kib_per_second * 1024 / _PARTS_A_SECOND)))


class Bucket:
    """A rate that several share, first come first served."""

    def __init__(self, per_second: float, burst: float = 0.0) -> None:
        """`burst`: how many units may pass at once after a rest. Rate 0: no limit."""
        self._rate = per_second
        self._burst_seconds = burst / per_second if per_second else 0.0
        self._paid_until = 0.0
        self._turn = asyncio.Lock()

    async def take(self, units: float) -> None:
        if not self._rate:
            return
        async with self._turn:
            now = asyncio.get_running_loop().time()
            self._paid_until = max(self._paid_until, now - self._burst_seconds) + units / self._rate
            if (wait := self._paid_until - now) > 0:
                await asyncio.sleep(wait)


class Reset(Exception):
    """The shape resets this connection."""


class Luck:
    """What happens to the parts of one direction of one connection."""

    def __init__(self, shape: Shape, name: str) -> None:
        self._shape = shape
        self._random = random.Random(f"{shape.seed} {name}")

    async def meet(self, size: int) -> None:
        """One part of so many bytes. Raises Reset."""
        shape = self._shape
        if self._strikes(shape.resets_per_mib, size):
            raise Reset
        if self._strikes(shape.stalls_per_mib, size):
            await asyncio.sleep(shape.stall_seconds)

    def _strikes(self, per_mib: float, size: int) -> bool:
        return bool(per_mib) and self._random.random() < -math.expm1(-per_mib * size / _MIB)
