"""docker's own commands: `docker run` for a fresh container, `docker exec` in one that lives."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .peer import Absent, Ground, Peer, call


@contextmanager
def docker(ground: Ground) -> Iterator[Peer]:
    """Raises Absent."""
    program = shutil.which("docker")
    if program is None:
        raise Absent("no docker command: apt-get install docker.io")
    asked = subprocess.run(
        [program, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise Absent(f"no docker daemon answers: {asked.stderr.strip()[-200:]}; start dockerd")
    if ground.docker_image is None:
        raise Absent("no image was named: give --docker-image, one of `docker images` with python3")
    where = ["--rm", "--network", "none", "-v", f"{ground.folder}:/mnt:ro", "-w", "/mnt"]

    def run(argv: Sequence[str]) -> list[str]:
        return [program, "run", *where, str(ground.docker_image), *argv]

    living = call([program, "run", "-d", *where, ground.docker_image, "sleep", "3600"], ground).strip()
    try:
        yield Peer(
            *("namespaces, files and cgroups; no warm start", run),
            inside=lambda argv: [program, "exec", living, *argv],
        )
    finally:
        subprocess.run([program, "rm", "--force", living], capture_output=True, check=False)
