"""A Dockerfile's root, built by the daemon, for the image store.

Guarantees: nothing stays at the daemon but what its builder caches; a build that fails says its last words.
Does not: pull what the daemon has not; nor give the build a network unless it is asked for."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiltyard.sandbox.errors import ImageFault, SandboxUnavailable

from .daemon import Daemon, NotThere

_BUILD_SECONDS = 1800
_LAST_WORDS = 1500


def is_dockerfile(path: Path) -> bool:
    """Dockerfile, Dockerfile.NAME or NAME.Dockerfile; a folder is a root."""
    name = path.name.lower()
    return path.is_file() and (name.startswith("dockerfile") or name.endswith(".dockerfile"))


@contextmanager
def built(
    dockerfile: Path, *, arguments: Mapping[str, str] | None = None, network: str | None = None
) -> Iterator[Path]:
    """A tar of the root that it makes, gone at the end; its folder is what COPY sees.

    `network` None: no network while building. Raises ImageFault, SandboxUnavailable."""
    daemon = Daemon()
    client = daemon.patient(_BUILD_SECONDS)
    try:
        image = _build(daemon, client, dockerfile, dict(arguments or {}), network or "none")
        try:
            with tempfile.NamedTemporaryFile(prefix="tiltyard-", suffix=".tar") as archive:
                _export(daemon, client, image, archive)
                yield Path(archive.name)
        finally:
            with suppress(NotThere, SandboxUnavailable), daemon.speaking("removing what was built"):
                client.remove_image(image)
    finally:
        client.close()
        daemon.close()


def _build(daemon: Daemon, client: Any, dockerfile: Path, arguments: dict[str, str], network: str) -> str:
    said, image = "", ""
    with daemon.speaking(f"building {dockerfile}"):
        for line in client.build(
            path=str(dockerfile.parent),
            dockerfile=dockerfile.name,
            buildargs=arguments,
            network_mode=network,
            rm=True,
            forcerm=True,
            decode=True,
        ):
            if "error" in line:
                cure = (
                    ""
                    if network != "none"
                    else " (it had no network: --network host gives it this machine's)"
                )
                raise ImageFault(
                    f"{dockerfile} cannot be built: {line['error']}{cure}; "
                    f"it said last: {said[-_LAST_WORDS:]}"
                )
            said += line.get("stream", "")
            image = line.get("aux", {}).get("ID", image)
    if not image:
        raise ImageFault(f"{dockerfile} gave no image; it said last: {said[-_LAST_WORDS:]}")
    return image


def _export(daemon: Daemon, client: Any, image: str, into: Any) -> None:
    with daemon.speaking("exporting what was built"):
        container = client.create_container(image, ["true"])["Id"]
        try:
            for chunk in client.export(container):
                into.write(chunk)
            into.flush()
        finally:
            client.remove_container(container, force=True)
