"""Which task a run tries next: seeded uniform passes over its taskset.

Guarantees: every task is drawn once before any is drawn twice, and draw i of a seed is the same on every
machine.
Does not: learn from results."""

from collections.abc import Sequence
from hashlib import sha256


def draws(tasks: Sequence[str], *, seed: int, start: int, count: int) -> list[str]:
    """Draws number `start` to `start + count − 1` over `tasks`; ValueError if `tasks` is empty."""
    if not tasks:
        raise ValueError("nothing to draw from: the taskset is empty")
    chosen: list[str] = []
    while len(chosen) < count:
        turn, offset = divmod(start + len(chosen), len(tasks))
        order = _shuffled(tasks, f"{seed}/{turn}")
        chosen += order[offset : offset + count - len(chosen)]
    return chosen


def _shuffled(tasks: Sequence[str], salt: str) -> list[str]:
    return sorted(tasks, key=lambda task: sha256(f"{salt}/{task}".encode()).digest())
