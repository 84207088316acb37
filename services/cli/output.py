"""What a command says: to people, or to a program.

Guarantees: with `--json`, exactly one JSON document goes to stdout, also when the command fails.
Does not: decide what is said."""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")


class Output:
    """One command's channel."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._console: Console | None = None

    @property
    def console(self) -> "Console":
        """Rich, on stderr when stdout belongs to a program."""
        if self._console is None:
            self._console = screen(stderr=self.as_json, highlight=False, soft_wrap=True)
        return self._console

    def result(self, document: object, shown: Callable[[], object] | None = None) -> None:
        """The command's result: `document` for programs, else what `shown` gives."""
        if self.as_json:
            click.echo(json.dumps(plain(document), ensure_ascii=False))
        elif shown is not None:
            self.console.print(shown())

    def say(self, *words: object) -> None:
        """Something for people only."""
        self.console.print(*words)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
        """A table; a column whose name ends in `#` holds numbers."""
        from rich.table import Table
        from rich.text import Text

        made = Table(
            box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_header=any(columns)
        )
        for name in columns:
            side = "right" if name.endswith("#") else "left"
            made.add_column(name.removesuffix("#"), justify=side, overflow="fold")
        for row in rows:
            made.add_row(*(Text("–" if cell is None else str(cell), style=_style(cell)) for cell in row))
        return made


def screen(**options: Any) -> "Console":
    """Rich with these options; where no terminal sets a width, lines are left whole."""
    from rich.console import Console

    made = Console(**options)
    return made if made.is_terminal else Console(**options, width=WIDE)


WIDE = 240
"""Columns where no terminal sets them."""
STYLES = {
    "green": "ACTIVE COMPLETED TRAINED EVALUATED READY DONE running balanced ready",
    "red": "FAILED QUARANTINED DEAD INVALID EXPIRED down",
    "yellow": "RUNNING PENDING SUBMITTED QUEUED LEASED GRANTED starting",
}
STYLE_OF = {state: style for style, states in STYLES.items() for state in states.split()}


def _style(cell: object) -> str:
    return STYLE_OF.get(str(cell), "")


def plain(document: object) -> Any:
    """A document, or a sequence of them, as plain values."""
    from pydantic import BaseModel

    if isinstance(document, BaseModel):
        return document.model_dump(mode="json")
    if isinstance(document, list | tuple):
        return [plain(d) for d in document]
    if isinstance(document, dict):
        return {k: plain(v) for k, v in document.items()}
    return document


def reporting(function: Callable[Concatenate[Output, P], R]) -> Callable[..., R]:
    """Give a command its `--json` and its `Output`, and turn the errors that people can act on into exit
    code 1."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    @functools.wraps(function)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> R:
        from tiltyard.client.errors import ClientError
        from tiltyard.contracts.document import InvalidDocument
        from tiltyard.contracts.settings import InvalidSettings

        try:
            return function(Output(as_json=as_json), *args, **kwargs)
        except (ClientError, InvalidDocument, InvalidSettings, TimeoutError) as error:
            raise click.ClickException(str(error)) from error

    return wrapped


def fail(error: click.ClickException, *, as_json: bool) -> int:
    """Say what went wrong; the exit code."""
    error.show(sys.stderr)
    if as_json:
        click.echo(json.dumps({"error": error.format_message()}, ensure_ascii=False))
    return error.exit_code
