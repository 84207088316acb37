"""Leadership of a loop: a lease row with an epoch.

Guarantees: a write that is guarded by `still`, before it or after it in one transaction, happens only while
its epoch leads, since the row stays locked until the write commits. A turn that finds nothing to write need
not ask: a transaction that locks nothing waits for no disk.
Does not: elect; the first to ask after the lease ran out leads."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

TERM = timedelta(seconds=8)


class NotLeading(RuntimeError):
    """Another epoch leads: stop, and ask for leadership anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who leads, under which epoch, and since when silence may be judged."""

    name: str
    holder: str
    epoch: int
    trusted_since: datetime


def lead(
    session: Session, name: str, holder: str, *, term: timedelta = TERM, version: str = ""
) -> Leader | None:
    """Take or renew leadership; None while another holder's lease runs. `version` is the holder's."""
    row = session.execute(
        text(
            "INSERT INTO leaderships AS l (name, holder, epoch, version, lease_until)"
            " VALUES (:name, :holder, 1, :version, clock_timestamp() + :term)"
            " ON CONFLICT (name) DO UPDATE SET holder = :holder, version = :version,"
            "   lease_until = clock_timestamp() + :term,"
            "   epoch = l.epoch + CASE WHEN l.holder = :holder THEN 0 ELSE 1 END,"
            "   trusted_since = CASE WHEN l.lease_until < clock_timestamp() THEN clock_timestamp()"
            "                   ELSE l.trusted_since END"
            " WHERE l.holder = :holder OR l.lease_until < clock_timestamp()"
            " RETURNING epoch, trusted_since"
        ),
        {"name": name, "holder": holder, "term": term, "version": version},
    ).one_or_none()
    if row is None:
        return None
    return Leader(name=name, holder=holder, epoch=row.epoch, trusted_since=row.trusted_since)


def still(session: Session, leader: Leader) -> None:
    """Raise `NotLeading` unless the epoch leads; nobody else can lead before this transaction ends."""
    row = session.execute(
        text("SELECT epoch FROM leaderships WHERE name = :name AND holder = :holder FOR UPDATE"),
        {"name": leader.name, "holder": leader.holder},
    ).one_or_none()
    if row is None or row.epoch != leader.epoch:
        raise NotLeading(f"{leader.holder} no longer leads {leader.name} (epoch {leader.epoch})")


def distrust_time(session: Session, leader: Leader) -> Leader:
    """Judge no silence for a while: the clock jumped, or the database was away. Raises `NotLeading`."""
    still(session, leader)
    since = session.execute(
        text(
            "UPDATE leaderships SET trusted_since = clock_timestamp() WHERE name = :name"
            " RETURNING trusted_since"
        ),
        {"name": leader.name},
    ).scalar_one()
    return replace(leader, trusted_since=since)


def resign(session: Session, leader: Leader) -> None:
    """Let the next one lead at once; it trusts the time anew."""
    session.execute(
        text(
            "UPDATE leaderships SET lease_until = clock_timestamp() WHERE name = :name AND epoch = :epoch"
            " AND holder = :holder"
        ),
        {"name": leader.name, "epoch": leader.epoch, "holder": leader.holder},
    )
