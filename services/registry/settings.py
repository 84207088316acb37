"""Settings of the registry.

Guarantees: the token is read from a file that nobody else can read, and is long enough not to be guessed.
Does not: make a token; `tiltyard up` or an operator does."""

import os
import stat
from pathlib import Path

from pydantic import Field

from tiltyard.contracts.settings import CommaList, Settings, load

SHORTEST_TOKEN = 24


class RegistrySettings(Settings):
    """What the registry reads from TILTYARD_ variables."""

    database_url: str = Field(pattern=r"^postgres(ql)?(\+psycopg)?://")
    objects_url: str = Field(pattern=r"^(file|s3)://")
    token_file: Path
    broker_url: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    allowed_hosts: CommaList = ()
    max_body_bytes: int = Field(default=32_000_000, ge=1_000)
    max_artifact_bytes: int = Field(default=4_000_000_000, ge=1_000)
    otlp_endpoint: str | None = None


class BadToken(ValueError):
    """The token file is missing, readable by others, or holds no usable token."""


def read() -> RegistrySettings:
    """Settings of this process; raises `InvalidSettings`."""
    return load(RegistrySettings, os.environ)


def read_token(path: Path) -> str:
    """The API token; raises `BadToken` saying what to do."""
    try:
        mode = path.stat().st_mode
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadToken(f"TILTYARD_TOKEN_FILE {path} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise BadToken(f"TILTYARD_TOKEN_FILE {path} can be read by others; run: chmod 600 {path}")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise BadToken(
            f"TILTYARD_TOKEN_FILE {path} must hold one line of at least {SHORTEST_TOKEN} printable ASCII"
            f" characters; make one: umask 077; openssl rand -hex 32 > {path}"
        )
    return token
