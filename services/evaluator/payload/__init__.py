"""Programs that run inside sandboxes: read as data and sent in; only `values` also runs out here."""

import marshal
from collections.abc import Mapping
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

FOLDER = "/tmp/tiltyard"
"""Where they lie in a box: beside the work folder, so that no file of a task can be in the way."""
SHARED = ("values", "files")
"""What every program has in front."""

_START = """import marshal
from _frozen_importlib_external import MAGIC_NUMBER
with open({parts!r}, "rb", 0) as file:
    magic, code, source = marshal.loads(file.read())
exec(marshal.loads(code) if magic == MAGIC_NUMBER else compile(source, __file__, "exec", dont_inherit=True))
"""


@cache
def program(name: str) -> Mapping[str, bytes]:
    """The files of a program by their paths in a box: its script `FOLDER/NAME.py`, and what the script runs.

    That is compiled already for a Python of our own version, and no literal of the script: to compile it, or
    to parse it, would take longer than most gradings."""
    here, path = Path(__file__).parent, f"{FOLDER}/{name}.py"
    source = b"\n\n".join((here / f"{part}.py").read_bytes() for part in (*SHARED, name))
    code = marshal.dumps(compile(source, path, "exec", dont_inherit=True, optimize=2))
    parts = f"{FOLDER}/{name}.parts"
    return {path: _START.format(parts=parts).encode(), parts: marshal.dumps((MAGIC_NUMBER, code, source))}
