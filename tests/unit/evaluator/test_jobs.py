"""A desk never holds more than its window, stops what it lost, and gives back what it cannot finish."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.exc import OperationalError

from services.evaluator.jobs import Desk


@dataclass(frozen=True)
class Job:
    id: str


@dataclass
class Work:
    """Jobs that end when the test lets them."""

    waiting: list[str]
    name: str = "work"
    go: asyncio.Event = field(default_factory=asyncio.Event)
    done: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    away: bool = False

    async def claim(self, limit: int) -> Sequence[Job]:
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return [Job(i) for i in taken]

    async def do(self, job: Job) -> None:
        await self.go.wait()
        self.done.append(job.id)

    async def renew(self, jobs: Sequence[Job]) -> set[str]:
        if self.away:
            raise OperationalError("UPDATE", {}, Exception("away"))
        return {j.id for j in jobs} - self.lost

    async def release(self, jobs: Sequence[Job]) -> None:
        self.released += [j.id for j in jobs]


def _ids(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def test_a_desk_claims_no_more_than_its_window() -> None:
    async def main() -> None:
        work = Work(_ids(10))
        desk = Desk(work, window=4)
        assert len(await desk.pull()) == 4
        assert await desk.pull() == []
        work.go.set()
        await desk.room()
        assert len(await desk.pull()) >= 2
        await desk.leave(5)
        assert len(work.done) + len(work.waiting) == 10

    asyncio.run(main())


def test_a_job_whose_lease_was_lost_is_stopped_and_not_given_back() -> None:
    async def main() -> None:
        work = Work(_ids(2), lost={"0"})
        desk = Desk(work, window=4)
        lost, kept = await desk.pull()
        await desk._renew()
        await asyncio.wait([lost])
        assert lost.cancelled()
        assert not kept.done()
        await desk.leave(0.01)
        assert work.released == ["1"]

    asyncio.run(main())


def test_a_database_that_is_away_for_a_moment_stops_nothing() -> None:
    async def main() -> None:
        work = Work(_ids(1), away=True)
        desk = Desk(work, window=4)
        (job,) = await desk.pull()
        await desk._renew()
        assert not job.done()
        work.go.set()
        await job
        assert work.done == ["0"]

    asyncio.run(main())


def test_a_desk_that_leaves_lets_jobs_end_gives_back_the_rest_and_claims_nothing_more() -> None:
    async def main() -> None:
        work = Work(_ids(3))
        desk = Desk(work, window=2)
        await desk.pull()
        await desk.leave(0.01)
        assert sorted(work.released) == ["0", "1"]
        assert work.done == []
        assert await desk.pull() == []
        assert work.waiting == ["2"]

    asyncio.run(main())
