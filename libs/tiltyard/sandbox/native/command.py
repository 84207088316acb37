"""A command on its way into a box: checked and encoded.

Guarantees: what leaves here the wire can carry and the kernel can start; the rest is a typed error before
anything is sent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiltyard.sandbox.backend import HasFileno
from tiltyard.sandbox.errors import InvalidExec
from tiltyard.sandbox.paths import HOME, locate

from . import wire

_MAX_STRING = 128 << 10  # MAX_ARG_STRLEN of Linux: longer ones execve refuses
_DEFAULT_ENV = {"HOME": HOME, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "USER": "box", "LOGNAME": "box"}


@dataclass(frozen=True, slots=True)
class Command:
    """Everything of an exec frame but its number and limits."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    cwd: bytes
    files: list[bytes]
    stdin: bytes
    fd_numbers: list[int]
    descriptors: list[int]
    flags: int
    """EXEC_STREAM, EXEC_WARM (a copy of the warm interpreter does as well as a cold start), EXEC_TTY"""

    @classmethod
    def build(
        cls,
        argv: Sequence[str | bytes],
        *,
        stdin: bytes,
        env: Mapping[str, str] | None,
        path: str,
        threads: int = 0,
        cwd: str | None,
        files: Mapping[str, bytes | str] | None,
        fds: Mapping[int, int | HasFileno] | None,
        stream: bool,
        warm: bool = True,
        tty: tuple[int, int] | None = None,
        input_fd: int | None = None,
    ) -> "Command":
        """`tty`: a terminal's master and slave. `input_fd` becomes the command's stdin.

        Raises InvalidExec, InvalidPath."""
        if isinstance(argv, str | bytes) or not argv:
            raise InvalidExec(f"argv is {argv!r}: give a list that begins with the program")
        numbers, descriptors = _descriptors(fds or {})
        own = list(tty or ()) + ([] if input_fd is None else [input_fd])
        may_warm = warm and tty is None and input_fd is None and _may_be_warm(argv, env or {})
        return cls(
            argv=[_string(part, "argument") for part in argv],
            env=_environment(path, threads, env or {}),
            cwd=_string(cwd or HOME, "cwd"),
            files=[_file(name, data) for name, data in (files or {}).items()],
            stdin=bytes(stdin),
            fd_numbers=[0] * len(own) + numbers,
            descriptors=own + descriptors,
            flags=wire.EXEC_STREAM * stream | wire.EXEC_WARM * may_warm | wire.EXEC_TTY * (tty is not None),
        )

    @staticmethod
    def limits(cpu: float, wall: float | None, idle: float | None, output_bytes: int) -> wire.ExecLimits:
        """Raises InvalidExec."""
        wall = 2 * cpu + 5 if wall is None else wall
        for name, value in (("cpu_seconds", cpu), ("wall_seconds", wall), ("idle_seconds", idle)):
            if value is not None and not (math.isfinite(value) and 0 < value <= 1e6):
                raise InvalidExec(f"{name} is {value}: give seconds above 0, at most a million")
        if not 0 <= output_bytes <= 1 << 30:
            raise InvalidExec(f"output_bytes is {output_bytes}: give 0 to {1 << 30}")
        return wire.ExecLimits(int(cpu * 1e9), int(wall * 1e9), int((idle or 0) * 1e9), output_bytes)

    def frame(self, ident: int, limits: wire.ExecLimits) -> bytes:
        """Raises InvalidExec when it is too large for one frame."""
        frame = wire.exec_frame(
            *(ident, limits, self.argv, self.env, self.cwd),
            fd_numbers=self.fd_numbers,
            files=self.files,
            stdin=self.stdin,
            flags=self.flags,
        )
        if len(frame) > wire.MAX_FRAME:
            raise InvalidExec(
                f"the command has {len(frame)} bytes with its files and stdin, at most {wire.MAX_FRAME}: "
                "write large files first"
            )
        return frame


def _may_be_warm(argv: Sequence[str | bytes], env: Mapping[str, str]) -> bool:
    """`python3 -I -S SCRIPT …` in an environment that would not have changed how Python starts."""
    if len(argv) < 4 or tuple(argv[:3]) != ("python3", "-I", "-S") or argv[3][:1] in ("-", b"-", "", b""):
        return False
    return not any(
        name == "PATH" or name.startswith(("LC_", "LANG", "PYTHON", "LD_", "MALLOC_")) for name in env
    )


def _string(value: str | bytes, what: str) -> bytes:
    try:
        encoded = value.encode() if isinstance(value, str) else bytes(value)
    except UnicodeEncodeError as error:
        raise InvalidExec(f"{what} {value!r} is not valid UTF-8: {error.reason}") from error
    if b"\0" in encoded:
        raise InvalidExec(f"{what} {encoded[:80]!r} contains NUL, which no program can be given")
    if len(encoded) >= _MAX_STRING:
        raise InvalidExec(
            f"{what} of {len(encoded)} bytes: the kernel takes less than {_MAX_STRING}; "
            "pass it as a file or stdin"
        )
    return encoded


def _environment(path: str, threads: int, env: Mapping[str, str]) -> dict[bytes, bytes]:
    """`threads`: what `nproc`, OpenMP and numeric libraries are told; the kernel would show the host's."""
    told = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    merged = {"PATH": path, **_DEFAULT_ENV, **told, **env}
    for name in env:
        if not name or "=" in name:
            raise InvalidExec(f"environment name {name!r} is empty or contains '='")
    return {
        _string(name, "environment name"): _string(value, f"environment {name}")
        for name, value in merged.items()
    }


def content(data: bytes | str, path: str) -> bytes:
    """A file's bytes. Raises InvalidExec for text that no encoding can hold."""
    try:
        return data.encode() if isinstance(data, str) else bytes(data)
    except UnicodeEncodeError as error:
        raise InvalidExec(
            f"the text for {path!r} holds a lone surrogate at {error.start}: give bytes instead"
        ) from error


def _file(path: str, data: bytes | str) -> bytes:
    root, below = locate(path)
    return wire.file_record(root, below, content(data, path), 0o644)


def _descriptors(fds: Mapping[int, int | HasFileno]) -> tuple[list[int], list[int]]:
    numbers: list[int] = []
    descriptors: list[int] = []
    for number, source in fds.items():
        if not wire.FIRST_FD <= number <= wire.LAST_FD:
            raise InvalidExec(f"descriptor {number} of the command: give {wire.FIRST_FD} to {wire.LAST_FD}")
        descriptor = source if isinstance(source, int) else source.fileno()
        if descriptor < 0:
            raise InvalidExec(f"descriptor {number} of the command: what was given for it is closed")
        numbers.append(number)
        descriptors.append(descriptor)
    return numbers, descriptors
