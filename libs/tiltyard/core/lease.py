"""A time-limited right to work on a row.

Guarantees: of two holders at most one is current, judged by the number that each acquisition raises.
Does not: know the time; `now` is the database's."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who works, under which number, until when."""

    holder: str
    number: int
    until: datetime

    def current(self, *, now: datetime) -> bool:
        return now < self.until

    def renewed(self, *, now: datetime, term: timedelta) -> "Lease":
        return Lease(holder=self.holder, number=self.number, until=now + term)


def acquire(old: Lease | None, *, holder: str, now: datetime, term: timedelta) -> Lease | None:
    """A lease for `holder`, or None while another holder's lease runs; renewing keeps the number."""
    if old is None:
        return Lease(holder=holder, number=1, until=now + term)
    if old.current(now=now):
        return old.renewed(now=now, term=term) if old.holder == holder else None
    return Lease(holder=holder, number=old.number + 1, until=now + term)
