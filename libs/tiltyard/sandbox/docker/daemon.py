"""The docker daemon, spoken to through its SDK.

Guarantees: whatever goes wrong between here and the daemon is a `SandboxUnavailable` that names the daemon
and the cure; one connection a thread.
Does not: retry. Who makes boxes does (supply.py)."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tiltyard.sandbox.errors import CapabilityRefused, ImageFault, SandboxGone, SandboxUnavailable

DEFAULT_URL = "unix:///var/run/docker.sock"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CALL_SECONDS = 60
_ANY_VERSION = "1.41"


class NotThere(Exception):
    """The daemon knows no such container or image."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image that the daemon holds."""

    id: str
    """sha256:… of its configuration: what boxes are made from, whatever its name points to later"""
    path: str
    """what PATH is in its boxes"""


class Daemon:
    """One daemon on this machine."""

    def __init__(self, url: str | None = None) -> None:
        """Raises CapabilityRefused."""
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        if not self.url.startswith("unix://"):
            raise CapabilityRefused(
                f"docker at {self.url}: boxes are spoken to over a bound unix socket, so the daemon must run "
                "on this machine (unix://…)"
            )
        self._local = threading.local()
        self._clients: list[Any] = []
        self._lock = threading.Lock()

    @property
    def client(self) -> Any:
        """This thread's `docker.APIClient`. Raises SandboxUnavailable."""
        self._knock()
        found = getattr(self._local, "client", None)
        if found is None:
            found = self._local.client = self._connect()
            with self._lock:
                self._clients.append(found)
        return found

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()
        self._local = threading.local()

    def _knock(self) -> None:
        """Raises SandboxUnavailable. The SDK would leave a socket open for each call that nobody takes."""
        with socket.socket(socket.AF_UNIX) as knocking:
            try:
                knocking.connect(self.url.removeprefix("unix://"))
            except OSError as error:
                raise SandboxUnavailable(self._absent("connecting", error)) from error

    def patient(self, seconds: int) -> Any:
        """A `docker.APIClient` of the caller's own, to be closed, that waits longer. Raises
        SandboxUnavailable."""
        self._knock()
        return self._connect(seconds)

    def _connect(self, seconds: int = _CALL_SECONDS) -> Any:
        try:
            import docker
        except ImportError as error:
            raise SandboxUnavailable(
                "the docker backend needs docker's SDK: pip install 'tiltyard[docker]'"
            ) from error
        with self.speaking("connecting"):
            asking = docker.APIClient(base_url=self.url, version=_ANY_VERSION, timeout=_CALL_SECONDS)
            try:  # the SDK's own way to ask for the version leaves its connection open when it fails
                version = asking.version(api_version=False)["ApiVersion"]
            finally:
                asking.close()
            return docker.APIClient(base_url=self.url, version=version, timeout=seconds)

    @contextmanager
    def speaking(self, what: str) -> Iterator[None]:
        """Translates what a call can raise. Raises SandboxUnavailable, NotThere."""
        import requests.exceptions
        from docker import errors

        try:
            yield
        except errors.NotFound as error:
            raise NotThere(str(error.explanation)) from error
        except errors.APIError as error:
            raise SandboxUnavailable(
                f"docker at {self.url}, {what}: {error.explanation or error}; `docker info` and the daemon's "
                "log say more"
            ) from error
        except (errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise SandboxUnavailable(self._absent(what, error)) from error

    def _absent(self, what: str, error: Exception) -> str:
        path = self.url.removeprefix("unix://")
        if not os.path.exists(path):
            return (
                f"docker at {self.url}, {what}: there is no such socket; start the daemon "
                "(`systemctl start docker`) or name its socket in DOCKER_HOST"
            )
        if not os.access(path, os.R_OK | os.W_OK):
            return (
                f"docker at {self.url}, {what}: this user may not use the socket; join its group "
                "(`usermod -aG docker USER`), knowing that this is as good as root"
            )
        return f"docker at {self.url}, {what}: {error}; is the daemon running (`docker info`)?"

    def require_runtime(self, runtime: str) -> None:
        """Raises SandboxUnavailable."""
        with self.speaking("asking for its runtimes"):
            known = sorted(self.client.info().get("Runtimes") or {})
        if runtime not in known:
            raise SandboxUnavailable(
                f"docker at {self.url} has no runtime {runtime!r}, only {', '.join(known)}: install it and "
                "name it under `runtimes` in the daemon's daemon.json (see docs/sandbox.md)"
            )

    def find_image(self, name: str) -> ContainerImage:
        """Raises ImageFault, SandboxUnavailable."""
        try:
            with self.speaking(f"looking for image {name}"):
                found = self.client.inspect_image(name)
        except NotThere as error:
            raise ImageFault(
                f"docker at {self.url} has no image {name!r}, only {self._known_images()}: "
                "pull, build or import it first; boxes never pull"
            ) from error
        config = found.get("Config") or {}
        if config.get("Volumes"):
            raise ImageFault(
                f"image {name!r} declares volumes ({', '.join(config['Volumes'])}), whose size nothing would "
                "bound: build it without VOLUME"
            )
        environment = dict(line.split("=", 1) for line in config.get("Env") or [] if "=" in line)
        return ContainerImage(found["Id"], environment.get("PATH", _DEFAULT_PATH))

    def remove(self, container: str) -> None:
        """Kills and removes a container; one that is gone, or going, is fine. Raises SandboxUnavailable."""
        from docker import errors

        try:
            with self.speaking("removing a box"):
                try:
                    self.client.remove_container(container, force=True, v=True)
                except errors.APIError as error:
                    if error.status_code != HTTPStatus.CONFLICT:  # its removal is under way
                        raise
        except NotThere:
            return

    def hold(self, container: str, *, pause: bool) -> None:
        """Stops all of it, or lets it go on. Raises SandboxGone, SandboxUnavailable."""
        try:
            with self.speaking("pausing a box" if pause else "resuming a box"):
                (self.client.pause if pause else self.client.unpause)(container)
        except NotThere as error:
            raise SandboxGone(f"container {container[:12]} is gone: acquire another box") from error

    def state(self, container: str) -> dict[str, Any] | None:
        """What `docker inspect` shows as its State; None: there is no such container.

        Raises SandboxUnavailable."""
        try:
            with self.speaking("looking at a box"):
                return self.client.inspect_container(container)["State"]
        except NotThere:
            return None

    def _known_images(self) -> str:
        with self.speaking("listing images"):
            tags = sorted(tag for image in self.client.images() for tag in image.get("RepoTags") or [])
        return ", ".join(tags[:8]) or "none"
