"""The API token of a server.

Guarantees: it is read from a file that nobody else can read, and is long enough not to be guessed.
Does not: make a token; `tiltyard up` or an operator does."""

import stat
from pathlib import Path

SHORTEST_TOKEN = 24


class BadToken(ValueError):
    """The token file is missing, readable by others, or holds no usable token."""


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
