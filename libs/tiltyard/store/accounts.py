"""Accounts: how far tenants and runs are behind their shares, kept from turn to turn.

Guarantees: written by the leader alone, in the transaction of the grants that they follow from; an account
that says nothing has no row.
Does not: count what is held; rollouts do (`store.pools`)."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from tiltyard.core.fairness import Grant, Pool

Name = tuple[str, str, str]
"""Pool, tenant, run; the run is empty for the tenant's own account."""
FORGOTTEN = 1e-3
"""Share-seconds that are not worth a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """One account."""

    deficit: float = 0.0
    held: float = 0.0
    waited: bool = False
    granted_at: datetime | None = None


def load(session: Session) -> tuple[dict[Name, Book], dict[str, datetime]]:
    """All accounts, and when each pool's were last written."""
    books: dict[Name, Book] = {}
    since: dict[str, datetime] = {}
    rows = session.execute(
        text("SELECT pool, tenant_id, run_id, deficit, held, waited, granted_at, updated_at FROM accounts")
    )
    for row in rows:
        books[row.pool, row.tenant_id, row.run_id] = Book(
            deficit=row.deficit, held=row.held, waited=row.waited, granted_at=row.granted_at
        )
        since[row.pool] = max(since.get(row.pool, row.updated_at), row.updated_at)
    return books, since


_SAVE = """
WITH told AS (
    SELECT * FROM jsonb_to_recordset(:rows) AS t(tenant_id text, run_id text, deficit float8, held float8,
        waited bool, served bool)
), forgotten AS (
    DELETE FROM accounts a WHERE a.pool = :pool AND NOT EXISTS (
        SELECT 1 FROM told t WHERE t.tenant_id = a.tenant_id AND t.run_id = a.run_id)
)
INSERT INTO accounts AS a (pool, tenant_id, run_id, deficit, held, waited, granted_at, updated_at)
SELECT :pool, tenant_id, run_id, deficit, held, waited,
    CASE WHEN served THEN CAST(:at AS timestamptz) END, :at
FROM told
ON CONFLICT (pool, tenant_id, run_id) DO UPDATE SET deficit = excluded.deficit, held = excluded.held,
    waited = excluded.waited, granted_at = coalesce(excluded.granted_at, a.granted_at), updated_at = :at
"""


def save(session: Session, pool: Pool, grants: tuple[Grant, ...], *, at: datetime) -> None:
    """Write the accounts of one pool (`core.accounts.closed`) as they are at `at`, after these grants."""
    served = {g.run for g in grants}
    parties = [(t.id, "", t) for t in pool.tenants.values()] + [(r.tenant, r.id, r) for r in pool.runs]
    rows = [
        {
            "tenant_id": tenant,
            "run_id": run,
            "deficit": party.deficit,
            "held": party.held,
            "waited": party.waited,
            "served": run in served,
        }
        for tenant, run, party in parties
        if party.waited or party.deficit < -FORGOTTEN or party.deficit > FORGOTTEN
    ]
    session.execute(
        text(_SAVE).bindparams(bindparam("rows", type_=JSONB)), {"rows": rows, "pool": pool.name, "at": at}
    )
