"""Ids sort by time of creation, and a database that is not Postgres is refused."""

from uuid import UUID

import pytest

from tiltyard.store.database import driver_url, new_id


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    made = [new_id() for _ in range(2_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_an_id_is_a_version_7_uuid() -> None:
    for _ in range(100):
        made = UUID(new_id())
        assert made.version == 7
        assert made.variant == "specified in RFC 4122"


@pytest.mark.parametrize("url", ["postgresql://u@h/d", "postgres://u@h/d", "postgresql+psycopg2://u@h/d"])
def test_any_postgres_url_gets_the_driver_that_is_installed(url: str) -> None:
    assert driver_url(url) == "postgresql+psycopg://u@h/d"


def test_a_password_survives() -> None:
    assert driver_url("postgresql://u:p%40ss@h/d") == "postgresql+psycopg://u:p%40ss@h/d"


def test_another_database_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"must begin with postgresql://, not sqlite://"):
        driver_url("sqlite:///x.db")
