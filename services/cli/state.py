"""The state directory of a local stack: whose it is, which version wrote it, and its secrets.

Guarantees: one stack at a time uses it; a directory of another version, or of something else, is refused.
Does not: migrate a directory of another version."""

import fcntl
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

FORMAT = "tiltyard state 1"


class StateError(RuntimeError):
    """The directory cannot be used; the message says what to do."""


@dataclass(kw_only=True)
class StateDirectory:
    """Paths below one directory."""

    path: Path
    _lock: IO[str] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.path = self.path.expanduser().absolute()

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    def claim(self) -> None:
        """Make or check the directory and hold it until `free`; raises `StateError`."""
        marker = self.path / "FORMAT"
        if self.path.exists() and any(self.path.iterdir()) and not marker.exists():
            raise StateError(f"{self.path} holds other things; choose an empty directory with --state")
        self.path.mkdir(parents=True, exist_ok=True)
        if marker.exists() and (found := marker.read_text().strip()) != FORMAT:
            raise StateError(
                f"{self.path} was written by another version ({found!r}, this one writes {FORMAT!r}); "
                "choose another directory with --state, or remove it"
            )
        marker.write_text(FORMAT + "\n")
        self._hold()

    def _hold(self) -> None:
        lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise StateError(
                f"another stack uses {self.path}; stop it with `tiltyard down --state {self.path}`"
            ) from None
        self._lock = lock

    def free(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def token(self) -> str:
        """The API's token, made at first use with mode 0600."""
        if not self.token_file.exists():
            descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        return self.token_file.read_text().strip()
