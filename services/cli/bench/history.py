"""What a grant costs beside few and beside many rollouts that have ended.

Guarantees: a real dispatcher grants, and its time is the database's: from the commit of the queued rollouts
to the last attempt's row.
Does not: run the granted rollouts; they are ended by hand, and so are those of the history."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from services.cli.bench.loop import EXACT, POLICY
from services.cli.bench.tasks import exact
from services.cli.stack import Options, free_port, running
from tiltyard.client import Client
from tiltyard.contracts.http import TaskSubmission
from tiltyard.contracts.messages import DISPATCH
from tiltyard.contracts.run_config import TrainRun
from tiltyard.queue import Publisher, open_publisher
from tiltyard.store import fleet, rollouts
from tiltyard.store.database import UnitOfWork, now
from tiltyard.store.rollouts import NewGroup

ROUNDS, GROUPS, GROUP = 15, 32, 8
"""Rounds of one measurement; groups of a round and their members: one turn of the dispatcher."""
RUNNER = "bench-runner"
GRANTED_WITHIN = 60.0
INSERTED_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantCost:
    """Milliseconds of a grant, beside so many ended rollouts."""

    rows: int
    ms: float


def grant_costs(state: Path, sizes: tuple[int, int], say: Callable[[str], None]) -> list[GrantCost]:
    """The cost of a grant at each size of the history, in order."""
    options = Options(state=state, port=free_port(), engine="scripted", services=("registry", "dispatcher"))
    with running(options) as stack, Client(stack.url, stack.token) as client:
        client.submit_tasks([TaskSubmission(spec=exact(1), tasksets=(EXACT,), repeats=1)])
        work = UnitOfWork(stack.database_url, application="tiltyard-bench", connections=1)
        try:
            with open_publisher("", stack.database_url) as publisher:
                with work() as session:
                    session.execute(text("UPDATE task_versions SET state = 'ACTIVE'"))
                run = client.start_run(TrainRun(kind="train", name="bench", taskset=EXACT, policy=POLICY))
                history = History(work=work, run_id=run.id, publisher=publisher)
                history.begin()
                return [_cost_beside(history, size, say) for size in sizes]
        finally:
            work.close()


def _cost_beside(history: "History", size: int, say: Callable[[str], None]) -> GrantCost:
    say(f"a grant beside {size} ended rollouts")
    history.grow(size)
    return GrantCost(rows=size, ms=history.cost())


class History:
    """A run with ended rollouts, and a runner that takes whatever is granted."""

    def __init__(self, *, work: UnitOfWork, run_id: str, publisher: Publisher) -> None:
        self._work, self._run, self._publisher = work, run_id, publisher
        self._version = ""
        self._groups = 1
        """The first group is the history's."""
        self._ended = 0

    def begin(self) -> None:
        """A RUNNING run with a group for its history, and a runner with room."""
        with self._work() as session:
            self._version = session.execute(text("SELECT id FROM task_versions")).scalar_one()
            session.execute(text("UPDATE runs SET state = 'RUNNING', started_at = clock_timestamp()"))
            fleet.join(session, RUNNER, node=RUNNER, slots=100_000, version=version("tiltyard"))
            session.execute(
                text(
                    'INSERT INTO groups (id, run_id, version_id, "index", size, state, deadline)'
                    " VALUES ('history', :run, :version, 0, 1, 'TRAINED', clock_timestamp())"
                ),
                {"run": self._run, "version": self._version},
            )

    def grow(self, size: int) -> None:
        """Add ended rollouts until there are `size`."""
        for first in range(self._ended, size, INSERTED_AT_ONCE):
            with self._work() as session:
                session.execute(
                    text(
                        "INSERT INTO rollouts"
                        " (id, run_id, group_id, version_id, member, state, fence, seq, expires_at)"
                        " SELECT 'history-' || n, :run, 'history', :version, n, 'TRAINED', 1, 8,"
                        " clock_timestamp() FROM generate_series(CAST(:first AS bigint), :last) AS n"
                    ),
                    {
                        "run": self._run,
                        "version": self._version,
                        "first": first,
                        "last": min(first + INSERTED_AT_ONCE, size) - 1,
                    },
                )
        self._ended = size
        with self._work() as session:
            session.execute(text("ANALYZE rollouts"))

    def cost(self) -> float:
        """Median milliseconds of a grant."""
        return statistics.median(self._round() for _ in range(ROUNDS)) / (GROUPS * GROUP)

    def _round(self) -> float:
        """Milliseconds until everything that one transaction queued is granted."""
        with self._work() as session:
            fleet.heartbeat(session, RUNNER)
            rollouts.plan(session, [self._group(self._groups + n) for n in range(GROUPS)])
        self._groups += GROUPS
        with self._work() as session:
            queued_at = now(session)
        self._publisher.announce(DISPATCH)
        deadline = time.monotonic() + GRANTED_WITHIN
        while (left := self._count("QUEUED")) and time.monotonic() < deadline:
            time.sleep(0.01)
        if left:
            raise RuntimeError(f"the dispatcher left {left} rollouts ungranted for {GRANTED_WITHIN:.0f} s")
        with self._work() as session:
            took = _last_grant(session) - queued_at
            _end_all(session)
        return took / timedelta(milliseconds=1)

    def _group(self, index: int) -> NewGroup:
        return NewGroup(
            run_id=self._run,
            version_id=self._version,
            index=index,
            size=GROUP,
            deadline_after=timedelta(hours=1),
            expires_after=timedelta(hours=1),
        )

    def _count(self, state: str) -> int:
        with self._work() as session:
            query = text("SELECT count(*) FROM rollouts WHERE state = :state")
            return session.execute(query, {"state": state}).scalar_one()


def _last_grant(session: Session) -> datetime:
    return session.execute(text("SELECT max(granted_at) FROM attempts")).scalar_one()


def _end_all(session: Session) -> None:
    """As if all granted ones had been trained on."""
    session.execute(text("UPDATE rollouts SET state = 'TRAINED' WHERE state = 'GRANTED'"))
    session.execute(text("UPDATE groups SET state = 'TRAINED' WHERE state = 'OPEN'"))
