"""Rows in a fresh database."""

from collections.abc import Iterator

import pytest

from tiltyard.store.database import UnitOfWork
from tiltyard.testing.rows import Rows


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    work = UnitOfWork(database_url)
    yield Rows(work)
    work.close()
