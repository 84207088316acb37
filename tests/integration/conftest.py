"""Real servers, one of each a session, and fresh databases, virtual hosts and places in the bucket a test."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.testing.servers import (
    Postgres,
    RabbitMQ,
    S3Server,
    rabbitmq_installed,
    start_postgres,
    start_rabbitmq,
    start_s3,
)

ROOT = Path(__file__).parents[2]
TEMPLATE = "migrated"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's Postgres server.

    Not below pytest's own folder: as root the server runs as another user, and every pytest session that
    starts closes that folder to others again."""
    with (
        tempfile.TemporaryDirectory(prefix="tiltyard-postgres-", ignore_cleanup_errors=True) as directory,
        start_postgres(Path(directory)) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres: Postgres) -> str:
    """URL of the server's maintenance database, which holds no tables of ours."""
    return postgres.url


@pytest.fixture(scope="session")
def migrated(postgres: Postgres) -> str:
    """Name of a database that alembic has migrated and nobody uses: a template."""
    migrate(postgres.database(name=TEMPLATE))
    return TEMPLATE


@pytest.fixture
def database_url(postgres: Postgres, migrated: str) -> Iterator[str]:
    """URL of a fresh, migrated database for one test."""
    url = postgres.database(template=migrated)
    yield url
    postgres.drop_database(url)


@pytest.fixture
def empty_database_url(postgres: Postgres) -> Iterator[str]:
    """URL of a fresh database without tables for one test."""
    url = postgres.database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The session's RabbitMQ broker."""
    if not rabbitmq_installed():
        pytest.skip("RabbitMQ is not installed: apt-get install rabbitmq-server")
    with start_rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbitmq_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    """AMQP URL of a fresh virtual host for one test."""
    url = rabbitmq.virtual_host()
    yield url
    rabbitmq.drop_virtual_host(url)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The session's S3 server."""
    with start_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment, by boto3's conventions."""
    for name, value in S3Server.credentials().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_url(s3_server: S3Server, s3_credentials: None) -> str:
    """URL for `open_store` of a place that nobody else uses."""
    return s3_server.place()


def migrate(url: str, revision: str = "head") -> None:
    """Bring a database to a revision, as an operator does."""
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", revision],
        cwd=ROOT,
        env={**os.environ, "TILTYARD_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"alembic upgrade {revision} failed:\n{done.stdout}\n{done.stderr}")
