"""`tiltyard sandbox door`: sandboxes for programs that are not root."""

import grp
import os
import sys
from pathlib import Path

import click

from services.cli.output import Output, reporting
from tiltyard.sandbox.images.store import STORE
from tiltyard.sandbox.native.host import DOOR
from tiltyard.sandbox.native.toolchain import CompilerFault, current_helpers


@click.command("door")
@click.option(
    "--group", default="tiltyard", show_default=True, help="Whose members may come in, by name or number."
)
@click.option(
    "--most", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Pools at once, of all."
)
@click.option(
    "--store", type=click.Path(path_type=Path), default=STORE, show_default=True, help="Where images are."
)
@reporting
def door(out: Output, group: str, most: int, store: Path) -> None:
    """Let programs of a group use native sandboxes without being root. Runs until it is stopped.

    \b
      groupadd --system tiltyard && usermod -aG tiltyard runner
      sudo tiltyard sandbox doctor            # once, so that the image is there
      sudo tiltyard sandbox door --group tiltyard
      sudo -u runner tiltyard sandbox run -- id

    What runs as root is a small C program that takes no path, argument or environment from a caller. Members
    can use this machine's memory and CPUs up to the limits they ask for. Stopping it leaves the
    sandboxes of those who came in as they are."""
    try:
        program = current_helpers().door
    except CompilerFault as error:
        raise click.ClickException(f"the sandbox helpers are not built: {error}") from error
    words = [str(program), str(store.absolute()), str(_number(group)), str(most)]
    if os.geteuid() != 0:
        raise click.ClickException(f"{DOOR} is made by root: run this as root (sudo)")
    out.result({"door": str(DOOR), "group": int(words[2]), "most": most})
    sys.stdout.flush()
    os.execve(program, words, {})


def _number(group: str) -> int:
    if group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise click.ClickException(
            f"no group is named {group!r}: make it with `groupadd --system {group}`"
        ) from error
