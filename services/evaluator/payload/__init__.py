"""Programs that run inside sandboxes: read as data and sent in; only `values` also runs out here."""

import marshal
from base64 import b64encode
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

FOLDER = "/tmp/tiltyard"
"""Where they lie in a box: beside the work folder, so that no file of a task can be in the way."""

_SCRIPT = """import marshal
from binascii import a2b_base64
from _frozen_importlib_external import MAGIC_NUMBER
if MAGIC_NUMBER == {magic!r}:
    code = marshal.loads(a2b_base64({code!r}))
else:
    code = compile({source!r}, {path!r}, "exec", dont_inherit=True)
exec(code)
"""


@cache
def program(name: str) -> bytes:
    """One program as a script, with what it needs in front.

    Compiled already for a Python of our own version, since compiling would take longer than most gradings."""
    here, path = Path(__file__).parent, f"{FOLDER}/{name}.py"
    source = (here / "values.py").read_bytes() + b"\n\n" + (here / f"{name}.py").read_bytes()
    code = b64encode(marshal.dumps(compile(source, path, "exec", dont_inherit=True)))
    return _SCRIPT.format(magic=MAGIC_NUMBER, code=code, source=source, path=path).encode()
