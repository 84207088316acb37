"""Which policy version answers, as rows come, go and lie."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from services.rollout.engine import Policy
from services.rollout.scripted_engine import Script, ScriptedEngine, ScriptedPolicy, load
from services.rollout.transformers_engine import Checkpoints
from services.rollout.versions import Load, NoSuchModel, NothingPublished, NotLoaded, Versions
from tests.integration.rollout.conftest import InProcess, Shelf
from tiltyard.contracts.messages import POLICY
from tiltyard.queue import open_listener, open_publisher
from tiltyard.store.policies import PolicyRow


def versions_over(shelf: Shelf, loader: Load, *, keep: int = 4) -> InProcess:
    return InProcess(shelf.database_url, ScriptedEngine(Script(answers={})), loader, keep=keep)


async def answering(versions: Versions, model: str) -> int:
    return (await versions.chooser(model))().version


class Counting:
    """Loads in name, slowly, and counts."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, row: PolicyRow) -> Policy:
        self.rows.append((row.run_id, row.version))
        assert self.may_end.wait(30)
        return ScriptedPolicy(run_id=row.run_id, version=row.version)


def test_a_version_is_loaded_once_however_many_ask(shelf: Shelf) -> None:
    run, loader = shelf.run("r"), Counting()
    shelf.publish(run, 0)
    loader.may_end.clear()

    async def go() -> list[int]:
        async with versions_over(shelf, loader) as service:
            asking = [
                asyncio.create_task(answering(service.versions, f"r@{v}")) for v in ["0", "latest"] * 20
            ]
            await asyncio.sleep(0.3)
            loader.may_end.set()
            return await asyncio.gather(*asking)

    assert asyncio.run(go()) == [0] * 40
    assert loader.rows == [(run, 0)]


def test_latest_follows_the_rows_and_a_run_has_two_names(shelf: Shelf) -> None:
    run = shelf.run("r")
    shelf.publish(run, 0)

    async def go() -> None:
        async with versions_over(shelf, load) as service:
            assert await answering(service.versions, "r@latest") == 0
            shelf.publish(run, 3)
            await service.versions.look()
            await until(lambda: len(service.versions.loaded) == 2)
            assert await answering(service.versions, f"{run}@latest") == 3
            assert await answering(service.versions, "r@0") == 0

    asyncio.run(go())


def test_a_version_that_is_still_loading_is_not_the_latest(shelf: Shelf) -> None:
    run, loader = shelf.run("r"), Counting()
    shelf.publish(run, 0)

    async def go() -> None:
        async with versions_over(shelf, loader) as service:
            assert await answering(service.versions, "r@latest") == 0
            loader.may_end.clear()
            shelf.publish(run, 1)
            await service.versions.look()
            await until(lambda: (run, 1) in loader.rows)
            assert await answering(service.versions, "r@latest") == 0
            loader.may_end.set()
            await until(lambda: len(service.versions.loaded) == 2)
            assert await answering(service.versions, "r@latest") == 1

    asyncio.run(go())


def test_a_hint_brings_a_new_version(shelf: Shelf) -> None:
    run = shelf.run("r")
    shelf.publish(run, 0)

    async def go() -> None:
        async with (
            versions_over(shelf, load) as service,
            open_listener("", shelf.database_url, [POLICY]) as ear,
        ):
            following = asyncio.create_task(service.versions.follow(ear))
            assert await answering(service.versions, "r@latest") == 0
            shelf.publish(run, 1)
            with open_publisher("", shelf.database_url) as publisher:
                publisher.announce(POLICY)
            await until(lambda: any(p.version == 1 for p in service.versions.loaded))
            assert await answering(service.versions, "r@latest") == 1
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(go())


def test_a_withdrawn_version_vanishes(shelf: Shelf) -> None:
    run = shelf.run("r")
    for version in (0, 1):
        shelf.publish(run, version)

    async def go() -> None:
        async with versions_over(shelf, load) as service:
            choose = await service.versions.chooser("r@1")
            assert await answering(service.versions, "r@0") == 0
            shelf.withdraw_after(run, 0)
            await service.versions.look()
            assert await answering(service.versions, "r@latest") == 0
            with pytest.raises(NoSuchModel, match="no published version 1; the newest are 0"):
                await service.versions.chooser("r@1")
            with pytest.raises(NoSuchModel, match="withdrawn"):
                choose()

    asyncio.run(go())


def test_what_does_not_exist_is_told_with_what_does(shelf: Shelf) -> None:
    shelf.publish(shelf.run("warm"), 4)
    shelf.run("empty")

    async def go() -> None:
        async with versions_over(shelf, load) as service:
            for model, words in {
                "nope@latest": "no run 'nope'.*models that exist: warm@latest",
                "warm@5": "the newest are 4",
                "warm": "run@version or run@latest",
                "warm@-1": "run@version or run@latest",
            }.items():
                with pytest.raises(NoSuchModel, match=words):
                    await service.versions.chooser(model)
            with pytest.raises(NothingPublished, match="no policy version yet"):
                await service.versions.chooser("empty@latest")

    asyncio.run(go())


def test_few_versions_are_kept_and_a_request_keeps_its_own(shelf: Shelf) -> None:
    run, loader = shelf.run("r"), Counting()
    for version in range(5):
        shelf.publish(run, version)

    async def go() -> None:
        async with versions_over(shelf, loader, keep=2) as service:
            first = await service.versions.chooser("r@0")
            for version in (1, 2, 3, 4):
                assert await answering(service.versions, f"r@{version}") == version
            assert [p.version for p in service.versions.loaded] == [3, 4]
            assert first().version == 0
            assert await answering(service.versions, "r@0") == 0

    asyncio.run(go())
    assert [version for _, version in loader.rows] == [0, 1, 2, 3, 4, 0]


def test_a_corrupt_version_leaves_the_previous_one_in_place(
    shelf: Shelf, checkpoint: Callable[[int], Path], tmp_path: Path
) -> None:
    run = shelf.run("r")
    shelf.publish(run, 0, checkpoint(0))
    prefix, files = f"runs/{run}/policies/1/1/", {}
    for path in checkpoint(1).iterdir():
        files[path.name] = shelf.objects.put(prefix + path.name, path).sha256
    shelf.row(run, 1, prefix, {**files, "model.safetensors": "0" * 64})

    async def go() -> None:
        checkpoints = Checkpoints(shelf.objects, cache_dir=tmp_path / "cache")
        async with versions_over(shelf, checkpoints.load) as service:
            assert await answering(service.versions, "r@latest") == 0, "a restart falls back to what loads"
            with pytest.raises(NotLoaded, match=r"model\.safetensors has sha256"):
                await service.versions.chooser("r@1")
            await service.versions.look()
            assert await answering(service.versions, "r@latest") == 0

    asyncio.run(go())
    assert list((tmp_path / "cache").iterdir()) == [], "nothing is left of a load"


def test_a_missing_object_is_told_and_tried_again_later(shelf: Shelf, tmp_path: Path) -> None:
    run = shelf.run("r")
    shelf.row(run, 0, f"runs/{run}/policies/0/1/", {"config.json": "0" * 64})

    async def go() -> None:
        async with versions_over(shelf, Checkpoints(shelf.objects).load) as service:
            for _ in range(2):
                with pytest.raises(NotLoaded, match=r"ObjectMissing.*config\.json"):
                    await service.versions.chooser("r@latest")

    asyncio.run(go())


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; the test's own time limit ends it."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  (rows are read in another task, which nobody can wait for)
            await asyncio.sleep(0.01)
