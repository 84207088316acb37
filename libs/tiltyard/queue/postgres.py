"""Hints by LISTEN and NOTIFY.

Guarantees: one connection for all topics of a listener, one for a publisher; a topic of any length.
Does not: queue anything: a notification that nobody listens to is gone, and the rows remain."""

import contextlib
from collections.abc import Iterable, Sequence
from hashlib import sha256

import psycopg
from psycopg.sql import SQL, Identifier

from tiltyard.contracts.messages import JobBatch

LONGEST_CHANNEL = 63
"""Bytes of a channel's name (NAMEDATALEN - 1)."""
CONNECT_SECONDS = 5
STATEMENT_MS = 5_000


def channel(topic: str) -> str:
    """The channel of a topic: readable where it fits, hashed where it does not."""
    name = f"tiltyard.{topic}"
    if len(name.encode()) <= LONGEST_CHANNEL:
        return name
    return f"tiltyard#{sha256(topic.encode()).hexdigest()[:48]}"


class PostgresSender:
    """A `Sender`. A job is a hint to its kind: the workers claim rows by themselves."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._connection: psycopg.Connection | None = None

    def connect(self) -> None:
        self._connection = _connected(self._url, "tiltyard-publisher")

    def send_hints(self, topics: Sequence[str]) -> None:
        if self._connection is None:
            raise ConnectionError("not connected")
        channels = [channel(topic) for topic in topics]
        self._connection.execute("SELECT pg_notify(name, '') FROM unnest(%s::text[]) AS name", [channels])

    def send_job(self, batch: JobBatch) -> None:
        self.send_hints([batch.kind])

    def close(self) -> None:
        _closed(self._connection)
        self._connection = None


class PostgresTap:
    """A `Tap`."""

    def __init__(self, database_url: str, topics: Iterable[str]) -> None:
        self._url = database_url
        self._topics = {channel(topic): topic for topic in topics}
        self._connection: psycopg.Connection | None = None

    def connect(self) -> None:
        self._connection = _connected(self._url, "tiltyard-listener")
        for name in self._topics:
            self._connection.execute(SQL("LISTEN {}").format(Identifier(name)))

    def drain(self, seconds: float) -> set[str]:
        if self._connection is None:
            raise ConnectionError("not connected")
        heard = self._connection.notifies(timeout=seconds, stop_after=1)
        return {self._topics[notify.channel] for notify in heard if notify.channel in self._topics}

    def close(self) -> None:
        _closed(self._connection)
        self._connection = None


def _connected(url: str, application: str) -> psycopg.Connection:
    """An autocommitting connection that notices a dead peer within half a minute."""
    return psycopg.connect(
        url.replace("postgresql+psycopg://", "postgresql://", 1),
        autocommit=True,
        application_name=application,
        connect_timeout=CONNECT_SECONDS,
        options=f"-c statement_timeout={STATEMENT_MS} -c synchronous_commit=off",  # a hint waits for no disk
        keepalives=1,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=20_000,
    )


def _closed(connection: psycopg.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(psycopg.Error):
            connection.close()
