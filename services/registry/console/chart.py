"""Geometry of the console's charts, in a fixed view box.

Guarantees: pure; every coordinate is finite and inside the box.
Does not: draw; the templates do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LARGE, SMALL = (720.0, 220.0), (360.0, 170.0)
"""Width and height of a view box; its text keeps its size."""
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 10.0, 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark on an axis: where, and what it says."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A line with an optional band around it."""

    line: str
    """SVG points."""
    band: str
    dots: tuple[tuple[float, float, str], ...]
    """x, y and what a dot tells."""
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    left: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


def chart(
    points: Sequence[Point],
    *,
    floor: float | None = None,
    ceiling: float | None = None,
    size: tuple[float, float] = LARGE,
) -> Chart | None:
    """The chart of `points` in order of x; None when there is nothing to draw."""
    known = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not known:
        return None
    width, height = size
    x_low, x_high = known[0].x, max(known[-1].x, known[0].x + 1)
    marks = _ticks(
        min(p.y for p in known) if floor is None else floor,
        max(p.y for p in known) if ceiling is None else ceiling,
    )
    y_low, y_high = marks[0], marks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        inside = min(max(y, y_low), y_high)
        right = LEFT + (x - x_low) / (x_high - x_low) * (width - LEFT - RIGHT)
        down = TOP + (1 - (inside - y_low) / (y_high - y_low)) * (height - TOP - BOTTOM)
        return round(right, 1), round(down, 1)

    banded = [p for p in known if p.low is not None and p.high is not None]
    edge = [place(p.x, p.high or 0.0) for p in banded] + [place(p.x, p.low or 0.0) for p in reversed(banded)]
    return Chart(
        line=_points([place(p.x, p.y) for p in known]),
        band=_points(edge) if len(banded) > 1 else "",
        dots=tuple((*place(p.x, p.y), p.label) for p in known) if len(known) <= 80 else (),
        x_ticks=tuple(
            Tick(at=place(x, y_low)[0], label=f"{x:g}")
            for x in _whole(x_low, x_high, 8 if size == LARGE else 5)
        ),
        y_ticks=tuple(Tick(at=place(x_low, y)[1], label=f"{y:g}") for y in marks),
        left=LEFT,
        width=width,
        height=height,
    )


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose [low, high], four to seven of them."""
    flat = high - low <= 1e-8 * max(abs(low), abs(high), 1.0)
    span = max(abs(high), 1.0) if flat else high - low
    step = 10 ** math.floor(math.log10(span / 4))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil((low + span) / step - 1e-9)
    return [round(n * step, 10) for n in range(first, max(last, first + 1) + 1)]


def _whole(low: float, high: float, most: int) -> list[float]:
    step = max(1, math.ceil((high - low) / most))
    return [float(x) for x in range(math.ceil(low), math.floor(high) + 1, step)]
