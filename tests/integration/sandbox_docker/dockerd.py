"""A docker daemon of the tests' own: private socket, data and runtimes, gone when they are.

Guarantees: nothing of it is left, no container, mount or process; the image is made once a machine, from what
`debootstrap` brings, and found again by its content.
Does not: use a daemon that runs already, or the network for anything but Debian's packages."""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IMAGE = "tiltyard-tests:base"
_SUITE, _PACKAGES = "bookworm", "python3"
_START_SECONDS = 60


class Dockerd:
    """A daemon that runs; a test may stop it and must start it again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def client(self) -> Any:
        import docker

        return docker.APIClient(base_url=self.url, version="1.41", timeout=60)

    def containers(self) -> list[dict[str, Any]]:
        client = self.client()
        try:
            return client.containers(all=True)
        finally:
            client.close()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "dockerd", "--config-file", self.folder / "daemon.json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + _START_SECONDS
        while True:
            if self._answers():
                return
            if process.poll() is not None or time.monotonic() > until:
                said = (self.folder / "log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"dockerd does not start:\n{said}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        """Its socket is there before it serves: then this waits for the answer."""
        with socket.socket(socket.AF_UNIX) as knocking:
            try:
                knocking.connect(self.url.removeprefix("unix://"))
            except OSError:
                return False
        self.containers()
        return True

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(60)
        # a containerd dies with its dockerd, yet may stay a zombie that the next one would wait for
        (self.folder / "run" / "containerd" / "containerd.pid").unlink(missing_ok=True)


def why_not() -> str:
    """Why docker cannot run here; empty: it can."""
    if os.geteuid() != 0:
        return "dockerd needs root"
    for program in ("dockerd", "debootstrap"):
        if shutil.which(program) is None and not Path("/usr/sbin", program).exists():
            return f"{program} is not installed: apt-get install docker.io debootstrap (infra/dev/test does)"
    return ""


def has_runsc() -> bool:
    return shutil.which("runsc") is not None


def _configuration(folder: Path) -> dict[str, Any]:
    runsc = {"path": shutil.which("runsc"), "runtimeArgs": ["--platform=ptrace", "--host-uds=open"]}
    bare = {**runsc, "runtimeArgs": ["--platform=ptrace", "--network=none"]}
    runsc["runtimeArgs"] = [*runsc["runtimeArgs"], "--network=none"]
    return {
        "hosts": [f"unix://{folder}/docker.sock"],
        "data-root": str(folder / "data"),
        "exec-root": str(folder / "run"),
        "pidfile": str(folder / "pid"),
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-masq": False,
        "runtimes": {"runsc": runsc, "runsc-bare": bare} if has_runsc() else {},
    }


@contextmanager
def dockerd() -> Iterator[Dockerd]:
    """A daemon with `IMAGE`. Its folder is short, since sockets' paths may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="tilt-dockerd-"))
    (folder / "daemon.json").write_text(json.dumps(_configuration(folder)))
    daemon = Dockerd(folder)
    try:
        daemon.start()
        try:
            _import(daemon, base_archive())
            yield daemon
        finally:
            daemon.stop()
    finally:
        _unmount_below(folder)
        shutil.rmtree(folder)


def _import(daemon: Dockerd, archive: Path) -> None:
    client = daemon.client()
    try:
        repository, _, tag = IMAGE.partition(":")
        client.import_image(str(archive), repository=repository, tag=tag)
    finally:
        client.close()


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", mount], check=False)


def base_archive() -> Path:
    """A tar of a minimal Debian with Python, made at the first call on a machine and kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiltyard-tests"
    cache.mkdir(parents=True, exist_ok=True)
    made_of = hashlib.sha256(f"{_SUITE} {_PACKAGES}".encode()).hexdigest()[:16]
    archive = cache / f"debian-{made_of}.tar"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _debootstrap(cache, archive)
    return archive


def _debootstrap(cache: Path, archive: Path) -> None:
    root = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
    try:
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, root],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"debootstrap failed: {made.stdout[-2000:]}{made.stderr[-2000:]}")
        half = archive.with_suffix(".half")
        left_out = [
            f"--exclude=./{name}" for name in ("var/cache/apt/*", "var/lib/apt/lists/*", "usr/share/doc/*")
        ]
        subprocess.run(["tar", "-C", root, *left_out, "-cf", half, "."], check=True)
        half.rename(archive)
    finally:
        _unmount_below(root)
        shutil.rmtree(root)
