"""Capacity as a vector: what a runner has, what a rollout asks for, and what share of a pool that is.

Guarantees: arithmetic is by component; a demand fits only when every component does.
Does not: know who has what (`core.placement`, `core.fairness`)."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

TOLERANCE = 1e-9
"""For fractions of a CPU, which do not add up exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Slots for episodes, CPUs, memory in MiB and GPUs."""

    slots: int = 0
    cpu: float = 0.0
    memory_mb: int = 0
    gpu: int = 0

    def __add__(self, other: "Capacity") -> "Capacity":
        return Capacity(
            slots=self.slots + other.slots,
            cpu=self.cpu + other.cpu,
            memory_mb=self.memory_mb + other.memory_mb,
            gpu=self.gpu + other.gpu,
        )

    def __sub__(self, other: "Capacity") -> "Capacity":
        return Capacity(
            slots=self.slots - other.slots,
            cpu=self.cpu - other.cpu,
            memory_mb=self.memory_mb - other.memory_mb,
            gpu=self.gpu - other.gpu,
        )

    def fits(self, room: "Capacity") -> bool:
        """Whether `room` has all of it."""
        return (
            self.slots <= room.slots
            and self.cpu <= room.cpu + TOLERANCE
            and self.memory_mb <= room.memory_mb
            and self.gpu <= room.gpu
        )

    def share(self, whole: "Capacity") -> float:
        """The dominant share: the largest part of any one resource of `whole`, 1 where that has none.

        Source: Ghodsi et al., "Dominant Resource Fairness", NSDI 2011."""
        largest = self.slots / whole.slots if whole.slots else float(self.slots > 0)
        if self.cpu or self.memory_mb or self.gpu:
            largest = max(largest, self.cpu / whole.cpu if whole.cpu else float(self.cpu > 0))
            memory = self.memory_mb / whole.memory_mb if whole.memory_mb else float(self.memory_mb > 0)
            largest = max(largest, memory, self.gpu / whole.gpu if whole.gpu else float(self.gpu > 0))
        return largest

    def lacking(self, room: "Capacity") -> tuple[str, ...]:
        """What `room` has too little of, as "memory_mb 4096 of 2048"."""
        short = ((f.name, getattr(self, f.name), getattr(room, f.name)) for f in fields(self))
        return tuple(f"{name} {asked:g} of {had:g}" for name, asked, had in short if asked > had + TOLERANCE)


NOTHING = Capacity()
ONE_SLOT = Capacity(slots=1)


def total(parts: Iterable[Capacity]) -> Capacity:
    """The sum of capacities."""
    whole = NOTHING
    for part in parts:
        whole = whole + part
    return whole


def least(parts: Iterable[Capacity]) -> Capacity:
    """The smallest of each component; nothing of nothing."""
    rows = list(parts)
    if not rows:
        return NOTHING
    return Capacity(
        slots=min(r.slots for r in rows),
        cpu=min(r.cpu for r in rows),
        memory_mb=min(r.memory_mb for r in rows),
        gpu=min(r.gpu for r in rows),
    )
