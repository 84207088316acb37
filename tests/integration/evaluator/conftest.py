"""Rows in a fresh database, real sandboxes to grade in, and a host that they may reach."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import pytest

from services.evaluator.boxes import Boxes
from services.evaluator.grading import Measured, grade
from tests.integration.evaluator.outside import Outside
from tiltyard.contracts.task_spec import TaskSpec
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.rows import Rows

T = TypeVar("T")


@pytest.fixture
def rows(database_url: str) -> Iterator[Rows]:
    work = UnitOfWork(database_url)
    yield Rows(work)
    work.close()


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    with Outside() as world:
        yield world


class Bench:
    """Grades answers in real sandboxes, on a loop of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, boxes: Boxes) -> None:
        self._loop, self.boxes = loop, boxes

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def grade(self, spec: TaskSpec, answer: str) -> Measured:
        return self.run(grade(spec.public(), spec.hidden().verifier, answer, self.boxes))

    def grade_all(self, trials: Iterable[tuple[TaskSpec, str]]) -> list[Measured]:
        """Many at once, as many as there are sandboxes for."""

        async def all_of_them() -> list[Measured]:
            return await asyncio.gather(
                *(grade(spec.public(), spec.hidden().verifier, answer, self.boxes) for spec, answer in trials)
            )

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(280)


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    """Real sandboxes; the tests that use it are marked `sandbox`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = Bench(loop, Boxes(6))
    try:
        made.run(made.boxes.prove())
        yield made
    finally:
        made.run(made.boxes.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
