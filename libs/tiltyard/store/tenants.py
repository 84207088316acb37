"""Tenants: who owns tasks and runs.

Guarantees: the tenant of a local stack exists before anything is written under it.
Does not: hold people or tokens; a token maps to a tenant in the registry's settings."""

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tiltyard.store.tables import Tenant

DEFAULT = "default"
"""The tenant that a registry with one token serves."""


def ensure(session: Session, tenant_id: str = DEFAULT) -> None:
    """Make the tenant unless it exists."""
    session.execute(insert(Tenant).values(id=tenant_id).on_conflict_do_nothing())
