"""Units of work outlive the connections that the server closes under them."""

import asyncio
import time

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tiltyard.store.database import IDLE_TIMEOUT_MS, AsyncUnitOfWork, UnitOfWork


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


def _leave_idle(work: UnitOfWork, url: str) -> None:
    """Until the server has had enough of it; then go on with it."""
    idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forgetful'"
    with psycopg.connect(url, autocommit=True) as watcher, work() as session:
        _backend(session)
        while watcher.execute(idle).fetchone() != (0,):
            time.sleep(0.05)
        _backend(session)


def test_a_transaction_that_is_left_idle_is_ended_by_the_database(empty_database_url: str) -> None:
    """Else what it could still see is kept for it, and each claim reads past more and more dead rows."""
    work = UnitOfWork(empty_database_url, application="forgetful", connections=1)
    with work() as session:
        given = session.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        assert given == f"{IDLE_TIMEOUT_MS // 60_000}min"
        session.execute(text("SET idle_in_transaction_session_timeout = 100"))
        session.commit()
    with pytest.raises(DBAPIError):
        _leave_idle(work, empty_database_url)
    with work() as session:
        assert _backend(session)
    work.close()
