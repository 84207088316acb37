"""Policy versions: integers per run that only grow.

Guarantees: a published version's files are named with their hashes; a withdrawn version is never the latest.
Does not: hold weights; the object store does, under the version's prefix."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session


class NoSuchPolicy(LookupError):
    """No published version answers to this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A policy version of a run; both None for a policy made fresh."""

    run_id: str | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    """One version: where its files are, and what they must hash to."""

    run_id: str
    version: int
    state: str
    step: int | None
    prefix: str
    files: dict[str, str]
    checkpoint: bool


_ROW = "SELECT run_id, version, state, step, prefix, files, checkpoint FROM policy_versions"


def publish(
    session: Session,
    run_id: str,
    version: int,
    *,
    step: int | None,
    prefix: str,
    files: Mapping[str, str],
    checkpoint: bool,
) -> None:
    """Insert a PUBLISHED version; its objects must be stored already."""
    session.execute(
        text(
            "INSERT INTO policy_versions (run_id, version, step, prefix, files, checkpoint)"
            " VALUES (:run, :version, :step, :prefix, CAST(:files AS jsonb), :checkpoint)"
        ),
        {
            "run": run_id,
            "version": version,
            "step": step,
            "prefix": prefix,
            "files": json.dumps(dict(files)),
            "checkpoint": checkpoint,
        },
    )


def _policy(row: Any) -> PolicyRow:
    return PolicyRow(**row._mapping)


def latest(session: Session, run_id: str) -> PolicyRow | None:
    """The newest published version of a run."""
    row = session.execute(
        text(f"{_ROW} WHERE run_id = :run AND state = 'PUBLISHED' ORDER BY version DESC LIMIT 1"),
        {"run": run_id},
    ).one_or_none()
    return None if row is None else _policy(row)


def latest_checkpoint(session: Session, run_id: str) -> PolicyRow | None:
    """The newest published version that has the optimizer's state beside its weights."""
    row = session.execute(
        text(
            f"{_ROW} WHERE run_id = :run AND state = 'PUBLISHED' AND checkpoint ORDER BY version DESC LIMIT 1"
        ),
        {"run": run_id},
    ).one_or_none()
    return None if row is None else _policy(row)


def get(session: Session, run_id: str, version: int) -> PolicyRow | None:
    row = session.execute(
        text(f"{_ROW} WHERE run_id = :run AND version = :version"), {"run": run_id, "version": version}
    ).one_or_none()
    return None if row is None else _policy(row)


def next_version(session: Session, run_id: str) -> int:
    """One more than any version the run ever had, withdrawn ones included; 0 for the first."""
    return session.execute(
        text("SELECT coalesce(max(version) + 1, 0) FROM policy_versions WHERE run_id = :run"), {"run": run_id}
    ).scalar_one()


def withdraw_after(session: Session, run_id: str, version: int) -> list[int]:
    """Withdraw every version of the run that is newer than `version`."""
    return list(
        session.execute(
            text(
                "UPDATE policy_versions SET state = 'WITHDRAWN' WHERE run_id = :run AND version > :version"
                " AND state = 'PUBLISHED' RETURNING version"
            ),
            {"run": run_id, "version": version},
        ).scalars()
    )


def resolve(session: Session, tenant_id: str, name: str) -> Reference:
    """`run@version` or `run@latest`, run a name or id, as a published version; raises `NoSuchPolicy`."""
    run, _, version = name.rpartition("@")
    row = session.execute(
        text(
            "SELECT p.run_id, p.version FROM policy_versions p JOIN runs r ON r.id = p.run_id"
            " WHERE r.tenant_id = :tenant AND (r.id = :run OR r.name = :run) AND p.state = 'PUBLISHED'"
            " AND (:version = 'latest' OR CAST(p.version AS text) = :version) ORDER BY p.version DESC LIMIT 1"
        ),
        {"tenant": tenant_id, "run": run, "version": version},
    ).one_or_none()
    if row is None:
        raise NoSuchPolicy(
            f"there is no published policy {name!r}; `tiltyard run show {run}` lists its versions"
        )
    return Reference(run_id=row.run_id, version=row.version)


def latest_of(session: Session, run_ids: list[str]) -> dict[str, int]:
    """The newest published version of each of these runs that has one."""
    rows = session.execute(
        text(
            "SELECT run_id, max(version) AS version FROM policy_versions"
            " WHERE run_id = ANY(:runs) AND state = 'PUBLISHED' GROUP BY run_id"
        ),
        {"runs": run_ids},
    )
    return {row.run_id: row.version for row in rows}


def published(session: Session, run_ids: list[str]) -> dict[str, tuple[int, ...]]:
    """The published versions, ascending, of each of these runs that has any."""
    rows = session.execute(
        text(
            "SELECT run_id, array_agg(version ORDER BY version) AS versions FROM policy_versions"
            " WHERE run_id = ANY(:runs) AND state = 'PUBLISHED' GROUP BY run_id"
        ),
        {"runs": run_ids},
    )
    return {row.run_id: tuple(row.versions) for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A run that has a published version."""

    run_id: str
    name: str
    newest: int
    created: int
    """When the newest was published: seconds since 1970."""


def served(session: Session, tenant_id: str, *, limit: int) -> list[Served]:
    """The tenant's runs with a published version, the latest published first."""
    rows = session.execute(
        text(
            "SELECT r.id AS run_id, r.name, max(p.version) AS newest,"
            " extract(epoch FROM max(p.created_at))::bigint AS created"
            " FROM policy_versions p JOIN runs r ON r.id = p.run_id"
            " WHERE r.tenant_id = :tenant AND p.state = 'PUBLISHED'"
            " GROUP BY r.id, r.name ORDER BY max(p.created_at) DESC LIMIT :limit"
        ),
        {"tenant": tenant_id, "limit": limit},
    )
    return [Served(**row._mapping) for row in rows]
