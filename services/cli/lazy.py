"""A command group that imports a command when it is run, so that `--help` answers at once.

Guarantees: a listed command that cannot be imported names what is missing.
Does not: import anything to show its list."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """Where a command is, and its line in the list."""

    where: str
    """`module:attribute`."""
    help: str


class LazyGroup(click.Group):
    """A group over `Later` commands, listed in their order."""

    def __init__(self, *args: object, later: Mapping[str, Later], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._later)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        later = self._later.get(cmd_name)
        if later is None:
            return None
        module, _, attribute = later.where.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`tiltyard {cmd_name}` needs the Python module {error.name!r}, which is not installed;"
                " install the local extra: pip install 'tiltyard[local]'"
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the near command for one that does not exist."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self._later:
            raise click.UsageError(unknown_command(name, self._later), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, later.help) for name, later in self._later.items()])


def unknown_command(name: str, known: Mapping[str, object]) -> str:
    """What to say about a command that does not exist."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no command {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
