"""A world on a database of one's own, or on one that a module's tests share where they cannot meet."""

from collections.abc import Iterator

import pytest

from tests.integration.store.world import World
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.servers import Postgres


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    work = UnitOfWork(database_url, connections=8)
    yield World(work)
    work.close()


@pytest.fixture(scope="module")
def shared(postgres: Postgres, migrated: str) -> Iterator[World]:
    url = postgres.database(template=migrated)
    work = UnitOfWork(url)
    yield World(work)
    work.close()
    postgres.drop_database(url)
