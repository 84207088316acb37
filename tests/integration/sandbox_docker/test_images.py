"""What docker hands out becomes an image that native boxes start from."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sandbox_docker.dockerd import IMAGE, Dockerd
from tiltyard.sandbox import Limits, NativeBackend, WarmPool
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


def _cli(store: Path, *words: str) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "services.cli", "sandbox", "images", *words, "--store", store, "--json"],
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(ran.stdout)


@pytest.mark.parametrize("kind", ["export", "save"])
def test_it_runs_python_in_a_native_box(archives: dict[str, Path], tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    digest = _cli(store, "import", str(archives[kind]), "--name", "debian")["digest"]
    assert _cli(store, "verify", "debian") == {"image": "debian", "digest": digest, "intact": True}

    async def use() -> bytes:
        async with (
            WarmPool(
                image="debian", size=1, limits=Limits(memory_mb=128), backend=NativeBackend(store)
            ) as pool,
            pool.acquire() as box,
        ):
            code = "import sys; print(sys.executable, open('/etc/debian_version').read())"
            result = await box.exec(["python3", "-I", "-S", "main.py"], files={"main.py": code})
            assert result.ok, result
            return result.stdout

    assert asyncio.run(use()).startswith(b"/usr/bin/python3 12.")
    (image,) = [each for each in _cli(store, "list") if each["digest"] == digest]
    assert (image["names"], image["in_use"]) == (["debian"], False)
    assert _cli(store, "prune", "debian")["removed"] == [digest]
    assert ImageStore(store).stored() == ()
