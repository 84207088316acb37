"""On which runner of a pool a rollout goes.

Guarantees: a runner never gets more than it has free; a rollout that must be alone gets an empty runner, and
nothing beside it; what a runner is being emptied for goes to nobody below it.
Does not: choose whose turn it is (`core.fairness`)."""

import heapq
from collections.abc import Iterable

from tiltyard.core.capacity import NOTHING, Capacity
from tiltyard.core.fleet import Runner


class Placement:
    """The free capacity of one pool, as it is given away during one turn."""

    def __init__(self, runners: Iterable[Runner]) -> None:
        open_runners = [r for r in runners if not r.closed]
        self._runner = {r.incarnation: r for r in open_runners}
        self._free = {r.incarnation: r.room for r in open_runners}
        self._empty = {r.incarnation for r in open_runners if not r.aboard}
        self._held: set[str] = set()
        self._unfit: set[tuple[Capacity, bool, int]] = set()
        self._most_free = [(-room.slots, name) for name, room in self._free.items() if room.slots > 0]
        heapq.heapify(self._most_free)

    @property
    def free_slots(self) -> int:
        return sum(max(0, room.slots) for name, room in self._free.items() if name not in self._held)

    def place(self, demand: Capacity, *, alone: bool = False, rank: int = 0) -> str | None:
        """Take room on the runner with most free slots that fits; None when there is none.

        Room only shrinks during a turn, so what did not fit once is not tried again."""
        if (demand, alone, rank) in self._unfit:
            return None
        chosen = self._emptied(demand) if alone else self._roomiest(demand, rank)
        if chosen is None:
            self._unfit.add((demand, alone, rank))
            return None
        self._take(chosen, demand, alone=alone)
        return chosen

    def _emptied(self, demand: Capacity) -> str | None:
        fitting = (name for name in self._empty - self._held if demand.fits(self._free[name]))
        return min(fitting, default=None)

    def _roomiest(self, demand: Capacity, rank: int) -> str | None:
        passed: list[tuple[int, str]] = []
        found: str | None = None
        while self._most_free and found is None:
            entry = heapq.heappop(self._most_free)
            name = entry[1]
            if name in self._held or -entry[0] != self._free[name].slots:
                continue
            if demand.fits(self._free[name]) and rank <= self._runner[name].yields_to:
                found = name
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._most_free, entry)
        return found

    def _take(self, name: str, demand: Capacity, *, alone: bool) -> None:
        self._empty.discard(name)
        self._free[name] = NOTHING if alone else self._free[name] - demand
        if self._free[name].slots > 0:
            heapq.heappush(self._most_free, (-self._free[name].slots, name))

    def hold(self, demand: Capacity, *, alone: bool = False) -> str | None:
        """Give nothing more to the runner that will soonest have room for this; None when none ever will.

        It is the one with the least aboard, so that the next turn holds the same one again."""
        able = [
            r for r in self._runner.values() if demand.fits(r.capacity) and r.incarnation not in self._held
        ]
        if not able:
            return None
        chosen = min(able, key=lambda r: (r.lonely, r.aboard, r.incarnation)).incarnation
        self._held.add(chosen)
        return chosen

    def could_ever(self, demand: Capacity) -> bool:
        """Whether some runner would have room for it if it were empty."""
        return any(demand.fits(r.capacity) for r in self._runner.values())
