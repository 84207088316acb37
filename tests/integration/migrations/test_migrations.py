"""Migrations: what they make is what the tables say, in both directions, with data inside."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from tests.integration.store.world import World
from tiltyard.core.rollout import State
from tiltyard.store.database import UnitOfWork
from tiltyard.store.tables import Base

ROOT = Path(__file__).parents[3]
TABLES = set(Base.metadata.tables)


def _start(url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env={**os.environ, "TILTYARD_DATABASE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _alembic(url: str, *arguments: str) -> str:
    process = _start(url, *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


@pytest.fixture
def work(database_url: str) -> Iterator[UnitOfWork]:
    work = UnitOfWork(database_url)
    yield work
    work.close()


def _tables(work: UnitOfWork) -> set[str]:
    return set(inspect(work.engine).get_table_names()) - {"alembic_version"}


def _lives(world: World) -> int:
    """Rows in every table that a run touches; how many rollouts there are."""
    run = world.train(tasks=2)
    world.scored(run, [0.0, 1.0])
    for state in (State.CANCELLED, State.FAILED, State.TRAINED):
        (rollout,) = world.group(run, 1)
        world.walk(rollout, state)
    return world.value("SELECT count(*) FROM rollouts")


def test_the_migrated_schema_is_the_one_in_the_tables(database_url: str) -> None:
    assert "No new upgrade operations detected" in _alembic(database_url, "check")


def test_a_database_full_of_rows_goes_down_and_up_again(database_url: str, work: UnitOfWork) -> None:
    assert _tables(work) == TABLES
    assert _lives(World(work)) == 5

    _alembic(database_url, "downgrade", "base")
    assert _tables(work) == set()

    _alembic(database_url, "upgrade", "head")
    assert _tables(work) == TABLES
    assert _lives(World(work)) == 5


def test_migrating_what_is_migrated_loses_nothing(database_url: str, work: UnitOfWork) -> None:
    rollouts = _lives(World(work))

    _alembic(database_url, "upgrade", "head")

    assert World(work).value("SELECT count(*) FROM rollouts") == rollouts


def test_two_that_migrate_at_once_wait_for_each_other(empty_database_url: str) -> None:
    both = [_start(empty_database_url, "upgrade", "head") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    work = UnitOfWork(empty_database_url)
    assert _tables(work) == TABLES
    with work() as session:
        assert session.execute(text("SELECT count(*) FROM alembic_version")).scalar_one() == 1
    work.close()


def test_the_sql_can_be_read_before_it_is_run(empty_database_url: str) -> None:
    script = _alembic(empty_database_url, "upgrade", "head", "--sql")

    assert all(f"CREATE TABLE {table} (" in script for table in TABLES)
    work = UnitOfWork(empty_database_url)
    assert _tables(work) == set()
    work.close()


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("", "no database: set TILTYARD_DATABASE_URL, or give -x url=postgresql://…"),
        ("sqlite:///x.db", "database URL must begin with postgresql://, not sqlite://"),
    ],
)
def test_a_migration_without_a_database_says_what_to_set(url: str, cure: str) -> None:
    process = _start(url, "upgrade", "head")
    output, _ = process.communicate(timeout=120)

    assert process.returncode != 0
    assert cure in output
