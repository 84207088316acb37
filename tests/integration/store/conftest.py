"""A world for each test, on one database that is emptied before it."""

from collections.abc import Iterator

import pytest

from tests.integration.store.world import World
from tiltyard.store.database import UnitOfWork
from tiltyard.store.tables import Base
from tiltyard.testing.servers import Postgres

EMPTY = "; ".join(f"DELETE FROM {table.name}" for table in reversed(Base.metadata.sorted_tables))


@pytest.fixture(scope="session")
def work(postgres: Postgres, migrated: str) -> Iterator[UnitOfWork]:
    url = postgres.database(template=migrated)
    work = UnitOfWork(url, connections=8)
    yield work
    work.close()
    postgres.drop_database(url)


@pytest.fixture
def world(work: UnitOfWork) -> World:
    world = World(work)
    world.sql("UPDATE runs SET policy_run_id = NULL")
    world.sql(EMPTY)
    return world


@pytest.fixture(scope="module")
def shared(postgres: Postgres, migrated: str) -> Iterator[World]:
    """For tests that cannot meet: nothing is emptied between them."""
    url = postgres.database(template=migrated)
    work = UnitOfWork(url)
    yield World(work)
    work.close()
    postgres.drop_database(url)
