"""The C helpers: compiled at install, checked against their source whenever they are used.

Guarantees: a helper that is handed out was built from the source beside it; where a compiler is present, a
stale one is rebuilt.
Does not: import anything of ours, since the build hook runs this file before the package is installed."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "c"
BINARIES = Path(__file__).parent / "bin"
HELPERS = ("host", "init", "door")

ZYGOTE = "tilt_zygote.so"

_COMMON = (
    *("-std=gnu17", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-Wformat=2", "-Wshadow"),
    *("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fstack-clash-protection", "-fno-strict-aliasing"),
    *("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"),
)
FLAGS = (*_COMMON, "-fPIE", "-static-pie")
SHARED_FLAGS = (*_COMMON, "-fPIC", "-shared", "-fvisibility=hidden")


class CompilerFault(Exception):
    """No compiler, or it refused the helpers; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Helpers:
    """The programs, in one folder: each finds the others beside itself."""

    host: Path
    init: Path
    door: Path

    @classmethod
    def within(cls, folder: Path) -> "Helpers":
        return cls(*(folder / f"tilt-{name}" for name in HELPERS))

    @property
    def programs(self) -> tuple[Path, ...]:
        return (self.host, self.init, self.door)


def source_hash() -> str:
    """Hex digest of every C source and of the flags."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for source in sorted([*SOURCES.rglob("*.[ch]"), *SOURCES.rglob("*.py")]):
        digest.update(source.relative_to(SOURCES).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def find_compiler() -> str | None:
    """$CC, else the first of cc, gcc and clang that is installed."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name))), None)


def compile_helpers(into: Path, *, without: Sequence[str] = ()) -> Helpers:
    """Builds the helpers into a folder, each moved into place whole. Raises CompilerFault.

    `without`: defences that are left out (c/without.h) for tests that see an attack succeed. Such helpers say
    so where `current_helpers` looks for the hash, and it never takes them for its own."""
    compiler = find_compiler()
    if compiler is None:
        raise CompilerFault(
            "no C compiler found (looked for $CC, cc, gcc, clang): install one, "
            "for example `apt-get install gcc libc6-dev`"
        )
    into.mkdir(parents=True, exist_ok=True)
    quick = ("-O0", "-U_FORTIFY_SOURCE") if without else ()  # a test builds many
    _compile_zygote(compiler, into, without)  # first: what tells that all is current is the programs
    for name in HELPERS:
        sources = _sources(name)
        built = BINARIES / f"tilt-{name}"
        unweakened = name == "init" or not _named(without, sources)  # the program is docker's
        if without and unweakened and _says(built, source_hash()):
            shutil.copy2(built, into)
        else:
            _compile(compiler, (*FLAGS, *quick), sources, into / f"tilt-{name}", without)
    return Helpers.within(into)


def _sources(name: str) -> list[Path]:
    """Children of tilt-host become tilt-init without an exec, and so does a warm copy become the payload."""
    init = sorted((SOURCES / "init").glob("*.c"))
    borrowed = {"host": [s for s in init if s.name != "main.c"], "zygote": [SOURCES / "init" / "rights.c"]}
    return [*sorted((SOURCES / name).glob("*.c")), *borrowed.get(name, [])]


def _named(walls: Sequence[str], sources: Sequence[Path]) -> bool:
    """Whether a helper's source can leave one of these out."""
    folders = {source.parent for source in sources}
    text = "".join(part.read_text() for folder in folders for part in folder.glob("*.[ch]"))
    return any(f"WITHOUT({wall})" in text for wall in walls)


def _compile_zygote(compiler: str, into: Path, without: Sequence[str]) -> None:
    """The warm interpreter, for this Python; without its headers Python starts cold in every box."""
    headers = Path(sysconfig.get_paths()["include"])
    (into / ZYGOTE).unlink(missing_ok=True)
    shutil.copyfile(SOURCES / "zygote" / "zygote.py", into / "zygote")
    if not (headers / "Python.h").exists():
        return
    sources = _sources("zygote")
    with suppress(CompilerFault):
        _compile(compiler, (*SHARED_FLAGS, f"-I{headers}"), sources, into / ZYGOTE, without)


def is_warm(helpers: Helpers) -> bool:
    """Whether the helpers have a warm interpreter for this Python."""
    library = helpers.host.parent / ZYGOTE
    return library.exists() and f":{_zygote_mark()}\0".encode() in library.read_bytes()


def _zygote_mark() -> str:
    """What tilt_zygote.so must contain: it fits one source and one Python."""
    return f"{source_hash()}-{sys.implementation.cache_tag}"


def _compile(
    compiler: str, flags: Sequence[str], sources: Sequence[Path], target: Path, without: Sequence[str]
) -> None:
    mark = "-without-".join((_zygote_mark() if target.name == ZYGOTE else source_hash(), *without))
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        command = [
            compiler,
            *flags,
            *(f"-DTILTYARD_WITHOUT_{wall}=1" for wall in without),
            f'-DTILT_SOURCE_HASH="{mark}"',
            "-o",
            str(built),
            *map(str, sources),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerFault(f"{compiler} could not build {target.name}: {done.stderr.strip()[-2000:]}")
        built.chmod(0o755)
        built.rename(target)


def _is_current(helpers: Helpers, wanted: str) -> bool:
    return all(_says(program, wanted) for program in helpers.programs)


def _says(helper: Path, wanted: str) -> bool:
    try:
        said = subprocess.run([helper, "--hash"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    return said.strip() == wanted


@functools.cache
def current_helpers() -> Helpers:
    """The helpers, rebuilt first if their source has changed. Raises CompilerFault."""
    helpers = Helpers.within(BINARIES)
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
