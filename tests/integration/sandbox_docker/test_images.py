"""What docker hands out becomes an image that native boxes start from."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.images.parcels import make_wheel
from tests.integration.sandbox_docker.dockerd import IMAGE, Dockerd
from tiltyard.sandbox import Limits, NativeBackend, WarmPool
from tiltyard.sandbox.images.packages import lock_of
from tiltyard.sandbox.images.store import ImageStore


def _written(path: Path, chunks: Iterable[bytes]) -> Path:
    with path.open("wb") as out:
        out.writelines(chunks)
    return path


@pytest.fixture(scope="module")
def archives(daemon: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`docker export` and `docker save` of the tests' image."""
    folder = tmp_path_factory.mktemp("archives")
    client = daemon.client()
    try:
        container = client.create_container(IMAGE, ["true"])["Id"]
        try:
            exported = _written(folder / "export.tar", client.export(container))
        finally:
            client.remove_container(container)
        return {"export": exported, "save": _written(folder / "save.tar", client.get_image(IMAGE))}
    finally:
        client.close()


def _images(store: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "services.cli",
        "sandbox",
        "images",
        *words,
        "--store",
        str(store),
        "--json",
    ]


def _cli(store: Path, *words: str) -> Any:
    return json.loads(subprocess.run(_images(store, *words), stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.parametrize("kind", ["export", "save"])
def test_it_runs_python_and_what_was_locked_above_it_in_a_native_box(
    archives: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    store, packages = tmp_path / "store", tmp_path / "packages"
    wheel = make_wheel(packages, tmp_path / "source", "greet", says="from a wheel")
    digest = _cli(store, "import", str(archives[kind]), "--name", "debian")["digest"]
    assert _cli(store, "verify", "debian") == {"image": "debian", "digest": digest, "intact": True}

    lock = tmp_path / "lock.toml"
    lock.write_text(lock_of(digest, [packages]).toml())
    layered = _cli(store, "import", str(lock), "--name", "layered", "--packages", str(packages))["digest"]
    wheel.unlink()

    async def use() -> bytes:
        async with (
            WarmPool(
                image="layered", size=1, limits=Limits(memory_mb=128), backend=NativeBackend(store)
            ) as pool,
            pool.acquire() as box,
        ):
            code = (
                "import greet, sys; print(sys.executable, open('/etc/debian_version').read()); greet.main()"
            )
            result = await box.exec(["sh", "-c", "python3 -I main.py && greet"], files={"main.py": code})
            assert result.ok, result
            return result.stdout

    said = asyncio.run(use())
    assert said.startswith(b"/usr/bin/python3 12.")
    assert said.endswith(b"from a wheel\n")
    (image,) = [each for each in _cli(store, "list") if each["digest"] == digest]
    assert (image["names"], image["in_use"]) == (["debian"], False)
    assert set(_cli(store, "prune", "debian", "layered")["removed"]) == {digest, layered}
    assert ImageStore(store).stored() == ()


def _import(daemon: Dockerd, store: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        _images(store, "import", *words),
        env={**os.environ, "DOCKER_HOST": daemon.url},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dockerfile_is_built_and_its_root_kept(daemon: Dockerd, tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("copied")
    recipe = tmp_path / "Dockerfile"
    recipe.write_text(
        "ARG BASE\nFROM $BASE AS made\nARG WORD\nRUN echo $WORD > /word\n"
        "FROM scratch\nCOPY --from=made /word /word\nCOPY mark /mark\n"
    )
    store = tmp_path / "store"
    given = ("--build-arg", f"BASE={IMAGE}", "--build-arg", "WORD=given")
    before = _held(daemon)
    made = _import(daemon, store, str(recipe), "--name", "built", *given)
    assert made.returncode == 0, made.stderr
    root = store / json.loads(made.stdout)["digest"].removeprefix("sha256:") / "root"
    assert ((root / "mark").read_text(), (root / "word").read_text()) == ("copied", "given\n")
    assert _held(daemon) == before, "what was built stayed at the daemon"


def _held(daemon: Dockerd) -> tuple[set[str], int]:
    """Images with a name, and how many containers."""
    client = daemon.client()
    try:
        tags = {tag for image in client.images() for tag in image["RepoTags"] or []}
        return tags - {"<none>:<none>"}, len(daemon.containers())
    finally:
        client.close()


def test_a_build_that_fails_says_why_and_what_was_said_last(daemon: Dockerd, tmp_path: Path) -> None:
    recipe = tmp_path / "bad.Dockerfile"
    recipe.write_text(f"FROM {IMAGE}\nRUN echo last words && exit 3\n")
    ran = _import(daemon, tmp_path / "store", str(recipe), "--name", "bad")
    assert ran.returncode == 1
    assert "returned a non-zero code: 3" in ran.stdout + ran.stderr
    assert "last words" in ran.stdout + ran.stderr
    assert "--network host" in ran.stdout + ran.stderr
    other = _import(daemon, tmp_path / "store", str(tmp_path / "mark"), "--name", "bad", "--network", "host")
    assert other.returncode == 2, "options of a build go with a Dockerfile alone"
