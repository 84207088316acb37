"""The two C helpers: compiled at install, checked against their source whenever they are used.

Guarantees: a helper that is handed out was built from the source beside it; where a compiler is present, a
stale one is rebuilt.
Does not: import anything of ours, since the build hook runs this file before the package is installed."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "c"
BINARIES = Path(__file__).parent / "bin"
HELPERS = ("host", "init")

FLAGS = (
    *("-std=gnu17", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-Wformat=2", "-Wshadow"),
    *("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fstack-clash-protection", "-fno-strict-aliasing"),
    *("-fPIE", "-static-pie", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
)


class CompilerFault(Exception):
    """No compiler, or it refused the helpers; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """The two programs, in one folder: tilt-host finds tilt-init beside itself."""

    host: Path
    init: Path


def source_hash() -> str:
    """Hex digest of every C source and of the flags."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for source in sorted(SOURCES.rglob("*.[ch]")):
        digest.update(source.relative_to(SOURCES).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def find_compiler() -> str | None:
    """$CC, else the first of cc, gcc and clang that is installed."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name))), None)


def compile_helpers(into: Path, *, extra: Sequence[str] = ()) -> Helpers:
    """Builds both helpers into a folder, each moved into place whole. Raises CompilerFault."""
    compiler = find_compiler()
    if compiler is None:
        raise CompilerFault(
            "no C compiler found (looked for $CC, cc, gcc, clang): install one, "
            "for example `apt-get install gcc libc6-dev`"
        )
    into.mkdir(parents=True, exist_ok=True)
    for name in HELPERS:
        _compile(compiler, name, into / f"tilt-{name}", extra)
    return Helpers(into / "tilt-host", into / "tilt-init")


def _compile(compiler: str, name: str, target: Path, extra: Sequence[str]) -> None:
    sources = sorted(str(source) for source in (SOURCES / name).glob("*.c"))
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        command = [
            compiler,
            *FLAGS,
            *extra,
            f'-DTILT_SOURCE_HASH="{source_hash()}"',
            "-o",
            str(built),
            *sources,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerFault(f"{compiler} could not build {target.name}: {done.stderr.strip()[-2000:]}")
        built.chmod(0o755)
        built.rename(target)


def _is_current(helpers: Helpers, wanted: str) -> bool:
    for path in (helpers.host, helpers.init):
        try:
            said = subprocess.run([path, "--hash"], capture_output=True, text=True, check=False).stdout
        except OSError:
            return False
        if said.strip() != wanted:
            return False
    return True


@functools.cache
def current_helpers() -> Helpers:
    """The helpers, rebuilt first if their source has changed. Raises CompilerFault."""
    helpers = Helpers(BINARIES / "tilt-host", BINARIES / "tilt-init")
    wanted = source_hash()
    if _is_current(helpers, wanted):
        return helpers
    try:
        BINARIES.mkdir(exist_ok=True)
        with (BINARIES / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return helpers if _is_current(helpers, wanted) else compile_helpers(BINARIES)
    except OSError as error:
        raise CompilerFault(
            f"the helpers in {BINARIES} are missing or stale and cannot be rebuilt: {error}"
        ) from error
