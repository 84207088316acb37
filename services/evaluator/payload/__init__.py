"""Programs that run inside sandboxes: read as data and sent in; only `values` also runs out here."""

from functools import cache
from pathlib import Path

FOLDER = "/tmp/tiltyard"
"""Where they lie in a box: beside the work folder, so that no file of a task can be in the way."""


@cache
def program(name: str) -> bytes:
    """The source of one program, with what it needs in front."""
    here = Path(__file__).parent
    return (here / "values.py").read_bytes() + b"\n\n" + (here / f"{name}.py").read_bytes()
