"""Where the boxes of a `tiltyard sandbox` command come from: its options, and what they mean."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from tiltyard.sandbox import InvalidExec, NativeBackend, SandboxBackend
from tiltyard.sandbox.capability import Demand
from tiltyard.sandbox.docker.backend import DockerBackend

_IMAGE = {
    "docker": "the name of one of `docker images`",
    "e2b": "the name of a template, such as base",
    "agent-sandbox": "the name of a SandboxWarmPool",
}


def source(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what boxes are made by, and from what."""
    for option in (
        click.option(
            "--image",
            help="native: host, or of `images list`. docker: of `docker images`. e2b: a template. "
            "agent-sandbox: a SandboxWarmPool.",
        ),
        click.option("--runtime", help="docker's runtime: runc, or runsc (gVisor) for hostile code."),
        click.option(
            "--backend", type=click.Choice(["native", *_IMAGE]), default="native", show_default=True
        ),
    ):
        command = option(command)
    return command


def accepting(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option that names what a runtime or provider need not enforce."""
    return click.option(
        "--accept",
        multiple=True,
        metavar="DEMAND",
        help="Go without what the runtime or provider cannot enforce (it says what); again for each.",
    )(command)


def made_by(
    backend: str, runtime: str | None, image: str | None, accept: Sequence[str]
) -> tuple[SandboxBackend, str]:
    """The backend and its image. Raises InvalidExec for options that do not go together."""
    if runtime and backend != "docker":
        raise InvalidExec("--runtime is for --backend docker")
    if backend == "native":
        if accept:
            raise InvalidExec("--accept is for the other backends: native enforces all")
        return NativeBackend(), image or "host"
    if image is None:
        raise InvalidExec(f"--backend {backend} needs --image, {_IMAGE[backend]}")
    if backend == "docker":
        return DockerBackend(runtime or "runc", accept=_demands(accept)), image
    return _remote(backend, accept), image


def _remote(backend: str, accept: Sequence[str]) -> SandboxBackend:
    """Keys and places come from the environment; see docs/sandbox.md."""
    from tiltyard.sandbox.remote import AgentSandboxBackend, E2BBackend

    accepted = _demands(accept)
    return E2BBackend(accept=accepted) if backend == "e2b" else AgentSandboxBackend(accept=accepted)


def _demands(words: Sequence[str]) -> list[Demand]:
    try:
        return [Demand(word) for word in words]
    except ValueError as error:
        raise InvalidExec(f"--accept: {error}: give {', '.join(Demand)}") from error
