"""Which registry a command talks to.

Guarantees: without options, it is the stack that runs on this machine; when none does, the error says how to
start one.
Does not: try the connection."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from services.cli import settings as own

if TYPE_CHECKING:
    from tiltyard.client import Client

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_URL = "http://127.0.0.1:8080"


def reaching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a registry, and a `client`."""

    @click.option("--url", metavar="URL", help="Registry to talk to; default: the local stack's.")
    @click.option(
        "--token-file", type=click.Path(path_type=Path, dir_okay=False), help="File that holds its token."
    )
    @click.option(
        "--stack",
        type=click.Path(path_type=Path, file_okay=False),
        help="State directory of the local stack.",
    )
    @functools.wraps(function)
    def wrapped(
        *args: Any, url: str | None, token_file: Path | None, stack: Path | None, **kwargs: Any
    ) -> Any:
        with connect(url, token_file, stack) as client:
            return function(*args, client=client, **kwargs)

    return wrapped


def connect(url: str | None, token_file: Path | None, stack: Path | None) -> "Client":
    """A client of the registry that options, environment or the local stack name."""
    from services.cli.status import read_status
    from tiltyard.client import Client

    settings = own.read()
    folder = own.state_dir(stack, settings)
    running = read_status(folder)
    address = url or settings.url or (running.url if running else DEFAULT_URL)
    file = token_file or settings.token_file or folder / "token"
    token = settings.token if settings.token and token_file is None else _read(file)
    return Client(address, token)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        raise click.ClickException(
            f"no token: {file} cannot be read ({error.strerror}); start a stack with `tiltyard up`, or name"
            " the token of another registry with --token-file or TILTYARD_TOKEN"
        ) from error
