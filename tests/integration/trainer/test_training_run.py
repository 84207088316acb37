"""A training run against real rows and objects: whole, killed anywhere, without its object store."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from services.trainer.checkpoint import Checkpoints
from services.trainer.worker import Trainer
from tests.integration.trainer.conftest import GROUPS, SIZE, STEPS, School
from tiltyard.objects import ObjectStore
from tiltyard.queue import Publisher
from tiltyard.store import training


class Killed(BaseException):
    """The process dies here: no `except Exception` may see it."""


class Fuse:
    """Burns at the n-th effect."""

    def __init__(self, burns_at: int | None) -> None:
        self.effects, self._burns_at = 0, burns_at
        self._lock = threading.Lock()

    def effect(self) -> None:
        with self._lock:
            self.effects += 1
            if self.effects == self._burns_at:
                raise Killed


class FusedStore:
    """An object store and a publisher whose every effect may be the last."""

    def __init__(self, store: ObjectStore, fuse: Fuse) -> None:
        self._store, self._fuse = store, fuse

    def get(self, key: str) -> bytes:
        self._fuse.effect()
        return self._store.get(key)

    def put(self, key: str, data: bytes | Path, *, if_absent: bool = False) -> Any:
        self._fuse.effect()
        return self._store.put(key, data, if_absent=if_absent)

    def announce(self, *topics: str) -> None:
        self._fuse.effect()


class UntilIdle(threading.Event):
    """Set as soon as somebody waits: the trainer has nothing left to do."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def _train(school: School, cache: Path, fuse: Fuse, *, holder: str = "t") -> None:
    """Work like a trainer process until nothing is left, or until the fuse burns."""
    store = FusedStore(school.objects, fuse)
    Trainer(
        work=school.world.work,
        checkpoints=Checkpoints(objects=cast(ObjectStore, store), cache=cache, device="cpu"),
        publisher=cast(Publisher, store),
        take_spans=lambda _: [],
        holder=holder,
        stop=UntilIdle(),
    ).serve()


@pytest.fixture(scope="module")
def undisturbed(school: School, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """Weights of a run that nobody disturbs, and how many effects it has."""
    run, fuse = school.run(), Fuse(None)
    _train(school, tmp_path_factory.mktemp("cache"), fuse)
    assert school.state(run) == ("COMPLETED", "")
    return school.weights(run), fuse.effects


def _whole(school: School, run: str) -> None:
    """Every rollout trained once, in one committed step, and every record agrees."""
    assert school.state(run) == ("COMPLETED", "")
    assert school.disagreements(run) == []
    states = school.world.column("SELECT state FROM rollouts WHERE run_id = :r", r=run)
    assert states == ["TRAINED"] * (STEPS * GROUPS * SIZE)
    trained = school.world.value(
        "SELECT count(*) FROM transitions t JOIN rollouts r ON r.id = t.rollout_id"
        " WHERE r.run_id = :r AND t.\"end\" = 'TRAINED'",
        r=run,
    )
    assert trained == STEPS * GROUPS * SIZE


def test_a_run_trains_every_group_once_and_publishes_a_version_a_step(school: School, cache: Path) -> None:
    run = school.run()

    _train(school, cache, Fuse(None))

    _whole(school, run)
    assert school.versions(run) == list(range(STEPS + 1))
    metrics = school.world.column("SELECT metrics FROM training_steps WHERE run_id = :r ORDER BY step", r=run)
    assert [m["reward"] for m in metrics] == [0.5] * STEPS
    assert all(m["grad_norm"] > 0 and m["tokens"] > 0 for m in metrics)


@pytest.mark.parametrize("burns_at", range(1, 56, 3))
def test_a_trainer_killed_anywhere_is_succeeded_with_nothing_lost_or_trained_twice(
    burns_at: int, school: School, cache: Path, undisturbed: tuple[str, int]
) -> None:
    weights, effects = undisturbed
    run = school.run()
    if burns_at <= effects:
        with pytest.raises(Killed):
            _train(school, cache, Fuse(burns_at))
        school.let_the_lease_run_out()

    _train(school, cache, Fuse(None), holder="successor")

    _whole(school, run)
    assert school.weights(run) == weights
    assert school.versions(run) == list(range(STEPS + 1))


def test_a_trainer_killed_again_and_again_gets_there(
    school: School, cache: Path, undisturbed: tuple[str, int]
) -> None:
    run, lives = school.run(), 0
    while school.state(run)[0] != "COMPLETED":
        lives += 1
        assert lives < 20, "no life gets further than the one before"
        try:
            _train(school, cache, Fuse(28), holder=f"life-{lives}")
        except Killed:
            school.let_the_lease_run_out()

    _whole(school, run)
    assert lives > 2
    assert school.weights(run) == undisturbed[0]


def test_a_trainer_that_lost_its_run_commits_nothing(school: School, cache: Path) -> None:
    run = school.run(groups_ready=GROUPS)
    with school.world.work() as session:
        held = training.lease(session, "slow")
    assert held is not None
    with school.world.work() as session:
        training.begin_step(session, run, held.fence, groups=GROUPS, traceparent="")
    school.let_the_lease_run_out()
    school.ready(run, (STEPS - 1) * GROUPS)

    _train(school, cache, Fuse(None), holder="quick")

    published = training.Published(version=99, prefix="p/", files={}, checkpoint=False)
    with pytest.raises(training.LostRun), school.world.work() as session:
        training.commit_step(session, run, held.fence, 1, published=published, manifest="m", metrics={})
    _whole(school, run)
    assert 99 not in school.versions(run)


def test_attempts_that_are_gone_from_the_store_end_the_run_by_name(school: School, cache: Path) -> None:
    run = school.run()
    gone = school.world.column("SELECT id FROM rollouts WHERE run_id = :r ORDER BY id", r=run)[0]
    key = f"a/{gone}/{school.world.row(gone).fence}"
    school.objects.delete(key)

    _train(school, cache, Fuse(None))

    state, reason = school.state(run)
    assert state == "FAILED"
    assert key in reason
    assert school.disagreements(run) == []
