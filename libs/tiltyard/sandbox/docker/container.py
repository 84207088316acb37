"""One box's container: made, answered, destroyed. Blocking; for threads.

Guarantees: a container that is handed out has called and serves; one that could not be made is removed; after
`destroy` returns True its first process was seen to end.
Does not: bound how many there are."""

import itertools
import os
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltyard.sandbox.errors import SandboxUnavailable
from tiltyard.sandbox.limits import Limits
from tiltyard.sandbox.native import wire
from tiltyard.sandbox.paths import HOME

from . import memory
from .daemon import ContainerImage, Daemon
from .owner import Owner
from .runtime import GVISOR_MIB, is_gvisor

_CALL_SECONDS = 30.0
_GONE_SECONDS = 20.0
_TELLING_SECONDS = 5
_INIT, _PLACE = "/.tilt/init", "/.tilt/socket"
_CALLER = "call"
_RIGHTS = ["SETUID", "SETGID", "SETPCAP", "KILL"]
"""What tilt-init needs to become the payload and to kill it; it empties the bounding set before it serves."""
_MASKED = [
    *("/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/config.gz", "/proc/interrupts", "/proc/kallsyms"),
    *("/proc/kcore", "/proc/key-users", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug"),
    *("/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware"),
    "/sys/devices/virtual/powercap",
]
_EXIT_JOIN = 64
_RUNSC_CURE = (
    'register it in the daemon\'s daemon.json with "runtimeArgs": ["--host-uds=open", "--network=none"] '
    "and restart the daemon"
)


@dataclass(frozen=True, slots=True)
class Container:
    """A container that serves. `pidfd` is -1 where its first process cannot be seen from here."""

    id: str
    socket: int
    pidfd: int
    made_at: float
    """seconds since the epoch, by which the daemon tells what happened after"""
    made_in: float
    kills: int
    """a descriptor for `memory.kills`; -1: its cgroup cannot be seen from here"""

    def close(self) -> None:
        for descriptor in (self.pidfd, self.kills):
            if descriptor >= 0:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that the containers of one pool have in common."""

    image: ContainerImage
    runtime: str
    limits: Limits
    init: Path
    owner: Owner

    def options(self, daemon: Daemon, folder: Path) -> dict[str, Any]:
        """The arguments of `create_container`."""
        limits = self.limits
        return {
            "image": self.image.id,
            "entrypoint": [_INIT],
            "command": [
                *("--join", f"{_PLACE}/{_CALLER}"),
                *(str(limits.nofile), str(limits.file_bytes), str(round(limits.cpus * 1000))),
            ],
            "user": "0:0",
            "working_dir": "/",
            "hostname": "box",
            "labels": self.owner.labels,
            "healthcheck": {"test": ["NONE"]},
            "host_config": self._host_config(daemon.client, folder),
        }

    def _host_config(self, client: Any, folder: Path) -> dict[str, Any]:
        limits = self.limits
        config = client.create_host_config(
            runtime=self.runtime,
            network_mode="none",
            ipc_mode="private",
            cgroupns="private",
            read_only=True,
            init=False,
            cap_drop=["ALL"],
            cap_add=_RIGHTS,
            security_opt=["no-new-privileges"],
            pids_limit=_pids(self.runtime, limits),
            mem_limit=_memory(self.runtime, limits),
            memswap_limit=_memory(self.runtime, limits),
            nano_cpus=round(limits.cpus * 1e9),
            log_config={"Type": "none"},
            binds=[f"{self.init}:{_INIT}:ro", f"{folder}:{_PLACE}:ro"],
            tmpfs=_disks(limits),
            ulimits=_ulimits(self.runtime, limits),
        )
        return {**config, "MaskedPaths": _MASKED}


def _pids(runtime: str, limits: Limits) -> int:
    """The payload's and PID 1; with gVisor its own threads, dozens for each process, in the same cgroup."""
    return 32 * limits.pids + 1024 if is_gvisor(runtime) else limits.pids + 1


def _memory(runtime: str, limits: Limits) -> int:
    """Bytes; with gVisor its own kernel lives in the same cgroup."""
    return limits.memory_bytes + (GVISOR_MIB << 20 if is_gvisor(runtime) else 0)


def _ulimits(runtime: str, limits: Limits) -> list[dict[str, Any]]:
    """gVisor counts a user's processes for each sandbox; Linux counts them for all containers together."""
    if not is_gvisor(runtime):
        return []
    return [{"Name": "nproc", "Soft": limits.pids, "Hard": limits.pids}]


def _disks(limits: Limits) -> dict[str, str]:
    """A container has no one file system for all that it may write: three share what there is."""
    shares = ((HOME, 4, "mode=755,uid=1000,gid=1000,exec"), ("/tmp", 3, "mode=1777,exec"))
    return {
        path: f"size={limits.disk_bytes * eighths // 8},nr_inodes={limits.inodes * eighths // 8},{how}"
        for path, eighths, how in (*shares, ("/dev/shm", 1, "mode=1777"))
    }


class Maker:
    """Makes and destroys the containers of one pool."""

    def __init__(self, daemon: Daemon, recipe: Recipe) -> None:
        self._daemon = daemon
        self._recipe = recipe
        self._numbers = itertools.count()
        self._debris: set[str] = set()

    def make(self) -> Container:
        """Raises SandboxUnavailable."""
        started = time.monotonic()
        folder = self._recipe.owner.folder / str(next(self._numbers))
        folder.mkdir(mode=0o755)
        call = folder / _CALLER
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(call))
            call.chmod(0o666)  # whoever is root in the container has no right over others' files
            listener.listen(1)
            try:
                return self._start(folder, listener, started)
            finally:
                call.unlink()
                folder.rmdir()

    def _start(self, folder: Path, listener: socket.socket, started: float) -> Container:
        daemon, made_at, pidfd, kills = self._daemon, time.time(), -1, -1
        self.clear_debris()
        with daemon.speaking("making a box"):
            made = daemon.client.create_container(**self._recipe.options(daemon, folder))["Id"]
        try:
            with daemon.speaking("starting a box"):
                daemon.client.start(made)
            state = daemon.state(made) or {}
            with suppress(OSError, OverflowError):
                pidfd = os.pidfd_open(state.get("Pid") or -1)
                kills = memory.open_kills(state["Pid"])
            socket_fd = self._answer(listener, made, pidfd)
        except BaseException as error:
            for descriptor in (pidfd, kills):
                if descriptor >= 0:
                    os.close(descriptor)
            self._remove(made)
            raise self._explained(error) from error
        return Container(made, socket_fd, pidfd, made_at, time.monotonic() - started, kills)

    def _answer(self, listener: socket.socket, made: str, pidfd: int) -> int:
        """The connection that its tilt-init opens once it is ready."""
        until = time.monotonic() + _CALL_SECONDS
        listener.setblocking(False)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        if pidfd >= 0:
            poll.register(pidfd, select.POLLIN)
        while time.monotonic() < until:
            poll.poll(1000)
            with suppress(BlockingIOError):
                return listener.accept()[0].detach()
            state = self._daemon.state(made)
            if state is None or state["Status"] in ("exited", "dead"):
                raise SandboxUnavailable(self._ended((state or {}).get("ExitCode", -1)))
        raise SandboxUnavailable(
            f"a box of runtime {self._recipe.runtime} did not call within {_CALL_SECONDS:.0f} s"
        )

    def _ended(self, code: int) -> str:
        step = code - _EXIT_JOIN
        if not 0 < step < len(wire.STEPS):
            return f"a box ended with status {code} before it could be used"
        doing = wire.STEPS[step]
        cure = f": {_RUNSC_CURE}" if is_gvisor(self._recipe.runtime) else ""
        return f"a box of runtime {self._recipe.runtime} failed while {doing}{cure}"

    def _explained(self, error: BaseException) -> BaseException:
        if is_gvisor(self._recipe.runtime) and "network namespace" in str(error):
            return SandboxUnavailable(f"{error}: {_RUNSC_CURE}")
        return error

    def destroy(self, container: Container) -> bool:
        """Whether its first process, and with it every other, was seen to have ended."""
        self._remove(container.id)
        if not self._is_gone(container):
            return False
        container.close()
        return True

    def _remove(self, container: str) -> None:
        """Now, or once the daemon answers again."""
        self._debris.add(container)
        with suppress(SandboxUnavailable):
            self._daemon.remove(container)
            self._debris.discard(container)

    def clear_debris(self) -> None:
        """What could not be removed when its time had come."""
        for container in tuple(self._debris):
            self._remove(container)

    def _is_gone(self, container: Container) -> bool:
        if container.pidfd >= 0:
            poll = select.poll()
            poll.register(container.pidfd, select.POLLIN)
            return bool(poll.poll(_GONE_SECONDS * 1000))
        try:
            return self._daemon.state(container.id) is None
        except SandboxUnavailable:
            return False

    def died_of_memory(self, container: Container) -> bool:
        """Whether the daemon told of an end for memory; for a container whose cgroup is gone. Raises
        SandboxUnavailable."""
        with self._daemon.speaking("asking how a box ended"):
            events = self._daemon.client.events(
                since=int(container.made_at),
                until=int(time.time()) + _TELLING_SECONDS,
                filters={"container": container.id, "event": "oom"},
                decode=True,
            )
            return any(True for _ in events)
