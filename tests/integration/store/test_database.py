"""Units of work outlive the connections that the server closes under them."""

import asyncio

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.store.database import AsyncUnitOfWork, UnitOfWork


def _close_every_connection(url: str, application: str) -> int:
    """As a restarted server does; how many there were."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
            [application],
        ).fetchall()
    return len(rows)


def _backend(session: Session) -> int:
    return session.execute(text("SELECT pg_backend_pid()")).scalar_one()


def test_a_transaction_after_the_servers_restart_connects_anew(empty_database_url: str) -> None:
    work = UnitOfWork(empty_database_url, application="patient", connections=2)
    with work() as one, work() as other:
        before = {_backend(one), _backend(other)}
    assert _close_every_connection(empty_database_url, "patient") == 2

    with work() as session:
        assert _backend(session) not in before
    work.close()


def test_an_asynchronous_one_too(empty_database_url: str) -> None:
    async def lives() -> tuple[int, int, int]:
        work = AsyncUnitOfWork(empty_database_url, application="patient", connections=1)
        before = await work.run(_backend)
        again = await work.run(_backend)
        closed = await asyncio.to_thread(_close_every_connection, empty_database_url, "patient")
        assert closed == 1
        after = await work.run(_backend)
        await work.close()
        return before, again, after

    before, again, after = asyncio.run(lives())
    assert before == again != after
