"""When a machine is asked for no more boxes, and when it is tried again.

Guarantees: one decision from what happened lately; the clock is an argument, so that nothing waits in a test.
Does not: look at the machine. `health.py` does, and tells what it saw."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from .errors import NodeUnhealthy

_EASED = 0.8
"""Pressure is over once it is below this share of what is too much, so that it does not flutter."""
_LOOK_SECONDS = 1.0


class BreakerState(StrEnum):
    """Whether boxes are lent."""

    closed = "closed"
    """they are"""
    open = "open"
    """none is: what was tried lately failed, or the machine is out of breath"""
    half_open = "half_open"
    """one is, to see whether it goes well again; another when that one has not come back for a rest"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """What is too much."""

    window_seconds: float = 30.0
    """how long an event counts"""
    least: int = 6
    """so many events before a share of them means anything"""
    failed_share: float = 0.5
    """of the events that were failures"""
    rest_seconds: float = 5.0
    """until it is tried again; doubled with each try that fails"""
    most_rest_seconds: float = 60.0
    pressure: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"memory": 60.0}))
    """resource → percent of the last ten seconds in which work stood still for it (cpu: some of the work;
    memory and io: all of it). A busy machine is slow, not ill: cpu and io are judged only
    where they are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReport:
    """A breaker at one moment."""

    state: BreakerState
    reason: str
    """why it is not closed; empty when it is"""
    since: float | None
    """when it left `closed`, on its clock; None while closed"""
    retry_in: float
    """seconds until it is tried again; 0 when asking is allowed"""
    succeeded: int
    """events within the window"""
    failed: int


class _Ledger:
    """What went well and what failed within the window, second by second."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._seconds: deque[tuple[int, int, int]] = deque()

    def add(self, now: float, good: int, bad: int) -> None:
        if self._seconds and self._seconds[-1][0] == int(now):
            _, before, failed = self._seconds.pop()
            good, bad = good + before, bad + failed
        self._seconds.append((int(now), good, bad))

    def totals(self, now: float) -> tuple[int, int]:
        while self._seconds and self._seconds[0][0] < now - self._policy.window_seconds:
            self._seconds.popleft()
        return sum(good for _, good, _ in self._seconds), sum(bad for _, _, bad in self._seconds)

    def is_too_much(self, now: float) -> bool:
        good, bad = self.totals(now)
        return good + bad >= self._policy.least and bad >= self._policy.failed_share * (good + bad)

    def clear(self) -> None:
        self._seconds.clear()


class Breaker:
    """Closed until too much fails; then open for a while, then one box is lent to see."""

    def __init__(self, policy: BreakerPolicy | None = None, *, clock: Callable[[], float]) -> None:
        self._policy = policy or BreakerPolicy()
        self._clock = clock
        self._used = _Ledger(self._policy)
        self._made = _Ledger(self._policy)
        self._failing = ""
        self._pressed = ""
        self._since: float | None = None
        self._until = 0.0
        self._rest = self._policy.rest_seconds
        self._probing = 0.0

    @property
    def state(self) -> BreakerState:
        if self._pressed or (self._failing and self._clock() < self._until):
            return BreakerState.open
        return BreakerState.half_open if self._failing else BreakerState.closed

    def admit(self) -> None:
        """For whoever wants a box; then `used` or `withdraw` must follow. Raises NodeUnhealthy."""
        state = self.state
        now = self._clock()
        if state is BreakerState.open or (state is BreakerState.half_open and now < self._probing):
            wait, reason = self._retry_in(), self._reason()
            raise NodeUnhealthy(
                f"no sandbox is lent now: {reason}; tried again in {wait:.1f} s "
                "(`tiltyard sandbox doctor` and this machine's log say more)",
                reason=reason,
                retry_after=wait,
            )
        self._probing = now + self._rest if state is BreakerState.half_open else 0.0

    def withdraw(self) -> None:
        """Whoever was admitted got no box; what that means, `made` tells."""
        self._probing = 0.0

    def used(self, *, well: int, failed: int) -> None:
        """Boxes that came back: those that served, and those whose commands the platform failed."""
        was, now = self.state, self._clock()
        self._probing = 0.0
        self._used.add(now, well, failed)
        if was is BreakerState.half_open and well and not failed:
            self._recover()
        elif failed:
            self._judge(was, self._used, "boxes failed their commands")

    def made(self, *, well: int, failed: int) -> None:
        """Boxes made ahead, or not. That one can be made again ends no rest: what it is good for is seen when
        it is used."""
        was = self.state
        self._made.add(self._clock(), well, failed)
        if failed:
            self._judge(was, self._made, "boxes could not be made")

    def press(self, pressure: Mapping[str, float]) -> None:
        """Percent of the last ten seconds for each resource, as the kernel tells it."""
        share = _EASED if self._pressed else 1.0
        most = self._policy.pressure
        high = {name: now for name, now in pressure.items() if name in most and now >= share * most[name]}
        self._pressed = ", ".join(f"{name} pressure {now:.0f} %" for name, now in sorted(high.items()))
        self._date()

    def report(self) -> BreakerReport:
        now = self._clock()
        counts = self._used.totals(now), self._made.totals(now)
        return BreakerReport(
            state=self.state,
            reason=self._reason(),
            since=self._since,
            retry_in=self._retry_in() if self.state is BreakerState.open else 0.0,
            succeeded=sum(good for good, _ in counts),
            failed=sum(bad for _, bad in counts),
        )

    def _judge(self, was: BreakerState, ledger: _Ledger, what: str) -> None:
        """Something failed."""
        now = self._clock()
        if was is BreakerState.half_open:
            self._rest = min(2 * self._rest, self._policy.most_rest_seconds)
        elif was is BreakerState.open or not ledger.is_too_much(now):
            return
        good, bad = ledger.totals(now)
        self._failing = f"{bad} of the last {good + bad} {what}"
        self._until = now + self._rest
        self._date()

    def _recover(self) -> None:
        self._failing = ""
        self._used.clear()
        self._made.clear()
        self._rest = self._policy.rest_seconds
        self._date()

    def _date(self) -> None:
        """Since when it has not been closed."""
        if not (self._failing or self._pressed):
            self._since = None
        elif self._since is None:
            self._since = self._clock()

    def _reason(self) -> str:
        return "; ".join(filter(None, (self._failing, self._pressed)))

    def _retry_in(self) -> float:
        resting = self._until - self._clock() if self._failing else 0.0
        return max(resting, _LOOK_SECONDS if self._pressed or resting <= 0 else 0.0)
