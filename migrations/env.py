"""Runs migrations over `TILTYARD_DATABASE_URL`, or over `-x url=…`.

Guarantees: one transaction for each migration; two processes that migrate at once wait for each other."""

import os

from alembic import context
from sqlalchemy import create_engine, text

from tiltyard.store.database import driver_url
from tiltyard.store.tables import Base

LOCK = 0x7117_0001
"""Key of the advisory lock that one migrating process holds."""


def _url() -> str:
    url = context.get_x_argument(as_dictionary=True).get("url") or context.config.attributes.get("url")
    url = url or os.environ.get("TILTYARD_DATABASE_URL")
    if not url:
        raise SystemExit("no database: set TILTYARD_DATABASE_URL, or give -x url=postgresql://…")
    return driver_url(url)


def _offline() -> None:
    context.configure(url=_url(), target_metadata=Base.metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def _online() -> None:
    engine = create_engine(_url())
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
        connection.commit()
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            transaction_per_migration=True,
            compare_server_default=True,
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    _offline()
else:
    _online()
