"""Run configs from TOML files, changed from the command line.

Guarantees: `--set a.b=c` sets exactly that key; c is a TOML value, or else a string.
Does not: check the config; the registry does, and names every fault."""

import tomllib
from pathlib import Path
from typing import Any

import click


def load(file: Path, sets: tuple[str, ...]) -> dict[str, Any]:
    """The document in `file` with `sets` applied in order; raises a usage error for a bad one."""
    try:
        config = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} is not valid TOML: {error}") from error
    for given in sets:
        put(config, given)
    return config


def put(config: dict[str, Any], given: str) -> None:
    """Apply one `a.b=c`."""
    path, equals, value = given.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise click.UsageError(f"--set takes key=value or table.key=value, not {given!r}")
    table = config
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise click.UsageError(f"--set {given!r}: {key!r} is a value in the file, not a table")
        table = inner
    table[keys[-1]] = _value(value.strip())


def _value(words: str) -> Any:
    try:
        return tomllib.loads(f"value = {words}")["value"]
    except tomllib.TOMLDecodeError:
        return words
