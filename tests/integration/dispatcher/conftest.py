"""A dispatcher on real rows, and what it tells the broker."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from services.dispatcher.loop import Loop
from tests.integration.store.conftest import work, world
from tests.integration.store.world import World
from tiltyard.contracts.messages import JobBatch
from tiltyard.queue import Publisher

__all__ = ["recorder", "work", "world"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a tenant was due of a saturated fleet, and what it held."""

    tenant: str
    weight: float
    due: float
    held: float


SHARES: list[Share] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shares and weights."""
    if not SHARES:
        return
    terminalreporter.section("shares of a saturated fleet")
    terminalreporter.write_line(f"{'tenant':<10}{'weight':>8}{'due':>8}{'held':>8}")
    for s in SHARES:
        terminalreporter.write_line(f"{s.tenant:<10}{s.weight:>8g}{s.due:>8.3f}{s.held:>8.3f}")


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
