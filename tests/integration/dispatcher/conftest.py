"""A dispatcher on real rows, and what it tells the broker."""

from collections.abc import Iterator, Sequence

import pytest

from services.dispatcher.loop import Loop
from tests.integration.store.conftest import work, world
from tests.integration.store.world import World
from tiltyard.contracts.messages import JobBatch
from tiltyard.queue import Publisher

__all__ = ["recorder", "work", "world"]


class Recorder:
    """A sender that keeps what it was given."""

    def __init__(self) -> None:
        self.hints: list[str] = []
        self.jobs: list[JobBatch] = []
        self.publisher = Publisher(self)

    def connect(self) -> None: ...

    def send_hints(self, topics: Sequence[str]) -> None:
        self.hints += topics

    def send_job(self, batch: JobBatch) -> None:
        self.jobs.append(batch)

    def close(self) -> None: ...

    def take_hints(self) -> list[str]:
        """Topics since the last look."""
        assert self.publisher.flush()
        taken, self.hints = self.hints, []
        return taken

    def take_jobs(self) -> dict[str, list[str]]:
        """Ids by kind of job since the last look."""
        assert self.publisher.flush()
        taken, self.jobs = self.jobs, []
        return {kind: [i for b in taken if b.kind == kind for i in b.ids] for kind in {b.kind for b in taken}}


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    with recorder.publisher:
        yield recorder


@pytest.fixture
def loop(world: World, recorder: Recorder) -> Loop:
    """The only dispatcher; it trusts the time."""
    return Loop(work=world.work, publisher=recorder.publisher, holder="d1", doubts_time=False)
