"""What a bench has measured so far, part by part.

Guarantees: a part that fails, or for which no time is left, is written down with the kind of its failure, and
the others are measured; what was measured before an interruption is there to be told.
Does not: stop a part by itself: whoever waits in it asks `left`."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

LONGEST_REASON = 600


class Kind(StrEnum):
    """Why a part gave no figures."""

    TOO_SLOW = "too_slow"
    """It was not done within its time."""
    NO_TIME = "no_time"
    """The time of the whole bench was over before it began."""
    INTERRUPTED = "interrupted"
    """Somebody stopped the bench in it."""
    CRASHED = "crashed"
    """Something broke; `reason` tells what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A part that gave no figures."""

    part: str
    kind: Kind
    reason: str


@dataclass(kw_only=True)
class Sheet:
    """Figures under dotted names, the parts that failed, and the time that is left."""

    part_seconds: float
    """Longest that one part may take."""
    seconds: float
    """Longest that all parts together may take."""
    say: Callable[[str], object] = lambda _: None
    """Progress, for people."""
    figures: dict[str, Any] = field(default_factory=dict, init=False)
    failures: list[Failed] = field(default_factory=list, init=False)
    took: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds of each part."""
    _part_ends: float = field(init=False)

    def __post_init__(self) -> None:
        self._part_ends = time.monotonic() + self.seconds

    @contextmanager
    def part(self, name: str, *, seconds: float | None = None) -> Iterator[None]:
        """One part, which may hold others and begins by asking `left`; raises nothing but interruptions.
        `seconds`: instead of `part_seconds`."""
        before, began = self._part_ends, time.monotonic()
        self._part_ends = min(before, began + (seconds or self.part_seconds))
        late = self._part_ends <= began
        self.say(f"{name} …")
        try:
            yield
        except TimeoutError as error:
            self._fail(name, Kind.NO_TIME if late else Kind.TOO_SLOW, error)
        except Exception as error:  # noqa: BLE001 - a failed part is data, and the others are measured
            self._fail(name, Kind.CRASHED, error)
        except BaseException as error:
            if not any(f.kind is Kind.INTERRUPTED for f in self.failures):  # the innermost part was it
                self._fail(name, Kind.INTERRUPTED, error)
            raise
        finally:
            self.took[name] = round(time.monotonic() - began, 1)
            self._part_ends = before

    def left(self) -> float:
        """Seconds that the part may still take; TimeoutError when there are none."""
        left = self._part_ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is over; --part-seconds and --seconds give more")
        return left

    def put(self, prefix: str, figures: Mapping[str, Any]) -> None:
        """Write figures down below a prefix such as `postgres`."""
        self.figures.setdefault(prefix, {}).update(figures)

    def _fail(self, part: str, kind: Kind, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
        self.failures.append(Failed(part=part, kind=kind, reason=reason))
        self.say(f"{part}: {kind}: {reason}")
