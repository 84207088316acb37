"""Engines, units of work, the database's time, and new ids.

Guarantees: a unit of work commits once at its end or rolls back whole; both kinds run the same store
functions; a connection that the server has closed is replaced before it is used.
Does not: retry; a caller that may repeat its work does. Notice a server that fell silent before a statement
is sent to it."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar
from uuid import UUID

import sqlalchemy
from sqlalchemy import Engine, create_engine, event, func
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

P = ParamSpec("P")
R = TypeVar("R")

STATEMENT_TIMEOUT_MS = 30_000
IDLE_TIMEOUT_MS = 60_000


def driver_url(url: str) -> str:
    """Any Postgres URL, for SQLAlchemy over psycopg 3; ValueError for another database."""
    parsed = make_url(url)
    if not parsed.drivername.startswith("postgres"):
        raise ValueError(f"database URL must begin with postgresql://, not {parsed.drivername}://")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def _connect_args(application: str) -> dict[str, object]:
    return {
        "application_name": application,
        "connect_timeout": 10,
        "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} "
        f"-c idle_in_transaction_session_timeout={IDLE_TIMEOUT_MS} -c timezone=UTC",
    }


class UnitOfWork:
    """`with work() as session:` is one transaction."""

    def __init__(self, url: str, *, application: str = "tiltyard", connections: int = 4) -> None:
        self.engine: Engine = create_engine(
            driver_url(url),
            connect_args=_connect_args(application),
            pool_size=connections,
            max_overflow=0,
        )
        event.listen(self.engine, "checkout", _refuse_closed)

    @contextmanager
    def __call__(self) -> Iterator[Session]:
        with Session(self.engine, expire_on_commit=False, autoflush=True) as session, session.begin():
            yield session

    def close(self) -> None:
        self.engine.dispose()


class AsyncUnitOfWork:
    """`await work.run(store_function, …)` is one transaction."""

    def __init__(self, url: str, *, application: str = "tiltyard", connections: int = 8) -> None:
        self.engine: AsyncEngine = create_async_engine(
            driver_url(url),
            connect_args=_connect_args(application),
            pool_size=connections,
            max_overflow=0,
        )
        event.listen(self.engine.sync_engine, "checkout", _refuse_closed)

    async def run(
        self, function: Callable[Concatenate[Session, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        async with AsyncSession(self.engine, expire_on_commit=False) as session, session.begin():
            return await session.run_sync(function, *args, **kwargs)

    async def close(self) -> None:
        await self.engine.dispose()


def _refuse_closed(_: object, record: ConnectionPoolEntry, *__: object) -> None:
    """Have the pool connect anew when the server has ended this idle connection.

    Nothing is readable on an idle connection but its end, so this asks the kernel and costs no round trip,
    where a ping would cost one a transaction."""
    watched = select.poll()
    watched.register(record.driver_connection, select.POLLIN)  # type: ignore[arg-type]
    if watched.poll(0):
        raise InvalidatePoolError("the server has closed this connection")


def now(session: Session) -> datetime:
    """The database's clock, in UTC; it moves on within a transaction."""
    return session.execute(sqlalchemy.select(func.clock_timestamp())).scalar_one()


def new_id() -> str:
    """A UUIDv7 (RFC 9562, section 6.2, method 3): sorts by time of creation, to a quarter of a microsecond.

    So the members of a group, made one after another, stand together in every queue."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4_096 // 1_000_000
    random = int.from_bytes(os.urandom(8)) >> 2
    return str(UUID(int=milliseconds << 80 | 7 << 76 | fraction << 64 | 0b10 << 62 | random))
