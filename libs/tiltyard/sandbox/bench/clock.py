"""Durations of one kind."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

Percentiles = dict[str, float]
"""p50 and p99, milliseconds"""


class Clock:
    """Collects durations, in milliseconds."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    @contextmanager
    def measure(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.taken.append((time.perf_counter() - start) * 1e3)

    def percentiles(self) -> Percentiles:
        """Of at least two durations."""
        cuts = quantiles(self.taken, n=100, method="inclusive")
        return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}
