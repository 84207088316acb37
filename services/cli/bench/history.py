"""What a grant costs beside few and beside many rollouts that have ended.

Guarantees: a real dispatcher grants, and its time is the database's: from the commit of the queued rollouts
to the last attempt's row. A history for which there is no room or time is as large as it got, and its figure
says so.
Does not: run the granted rollouts; they are ended by hand, and so are those of the history, which have no
attempts and no transitions."""

import shutil
import statistics
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from services.cli.bench.loop import EXACT, POLICY
from services.cli.bench.sheet import Sheet
from services.cli.bench.tasks import exact
from services.cli.stack import Options, Stack, free_port, running
from tiltyard.client import Client
from tiltyard.contracts.http import TaskSubmission
from tiltyard.contracts.messages import DISPATCH
from tiltyard.contracts.run_config import TrainRun
from tiltyard.queue import Publisher, open_publisher
from tiltyard.store import fleet, rollouts
from tiltyard.store.database import UnitOfWork, new_id, now
from tiltyard.store.rollouts import NewGroup

ROUNDS, GROUPS, GROUP = 15, 32, 8
"""Rounds of one measurement; groups of a round and their members: one turn of the dispatcher."""
RUNNER = "bench-runner"
GRANTED_WITHIN = 60.0
INSERTED_AT_ONCE = 250_000
RUN_GROUPS = 12_500
"""Groups of a run of the history."""
ROW_BYTES = 1_000
"""Disk that a rollout of the history takes, with its part of a group, its index entries and its log."""
SPARE_BYTES = 5_000_000_000
"""Disk that is left alone."""
ROUNDS_SECONDS = 20.0
"""Time kept for the rounds beside a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantCost:
    """Milliseconds of a grant, beside so many ended rollouts."""

    rows: int
    ms: float


def measure(state: Path, sizes: tuple[int, int], sheet: Sheet) -> None:
    """The cost of a grant at each size of the history, and their ratio, on the sheet."""
    options = Options(state=state, port=free_port(), engine="scripted", services=("registry", "dispatcher"))
    with sheet.part("grants beside a history"):
        sheet.left()
        with running(options) as stack, Client(stack.url, stack.token) as client:
            _tell(sheet, *_costs(stack, client, sizes, sheet))


def _costs(stack: Stack, client: Client, sizes: tuple[int, int], sheet: Sheet) -> list[GrantCost]:
    client.submit_tasks([TaskSubmission(spec=exact(1), tasksets=(EXACT,), repeats=1)])
    work = UnitOfWork(stack.database_url, application="tiltyard-bench", connections=1)
    try:
        with open_publisher("", stack.database_url) as publisher:
            with work() as session:
                session.execute(text("UPDATE task_versions SET state = 'ACTIVE'"))
            run = client.start_run(TrainRun(kind="train", name="bench", taskset=EXACT, policy=POLICY))
            history = History(work=work, run_id=run.id, publisher=publisher)
            history.begin()
            return [_beside(history, size, stack.options.state, sheet) for size in sizes]
    finally:
        work.close()


def _tell(sheet: Sheet, few: GrantCost, many: GrantCost) -> None:
    sheet.figures[f"grant_cost_ratio_{_short(few.rows)}_{_short(many.rows)}"] = many.ms / few.ms
    sheet.figures["grant_cost"] = [asdict(few), asdict(many)]


def _beside(history: "History", size: int, state: Path, sheet: Sheet) -> GrantCost:
    room = (shutil.disk_usage(state).free - SPARE_BYTES) // ROW_BYTES
    history.grow(min(-(-size // GROUP) * GROUP, max(room, INSERTED_AT_ONCE)), sheet)
    sheet.say(f"a grant beside {history.ended} ended rollouts …")
    return GrantCost(rows=history.ended, ms=history.cost())


def _short(rows: int) -> str:
    """10k, 10m, 750k: as it stands in the name of a figure."""
    return (
        f"{rows // 1_000_000}m" if rows >= 1_000_000 else f"{rows // 1_000}k" if rows >= 1_000 else str(rows)
    )


class History:
    """Ended runs with their groups and rollouts, and a run whose rollouts are granted to a runner."""

    def __init__(self, *, work: UnitOfWork, run_id: str, publisher: Publisher) -> None:
        self._work, self._run, self._publisher = work, run_id, publisher
        self._version = self._runner = ""
        self._groups = 0
        """Groups of the run that is granted."""
        self.ended = 0
        """Rollouts of the history."""

    def begin(self) -> None:
        """A RUNNING run."""
        with self._work() as session:
            self._version = session.execute(text("SELECT id FROM task_versions")).scalar_one()
            session.execute(text("UPDATE runs SET state = 'RUNNING', started_at = clock_timestamp()"))

    def grow(self, size: int, sheet: Sheet) -> None:
        """Add ended groups until they have `size` rollouts, or the part's time is nearly over."""
        self._vacuuming(False)
        while self.ended < size and sheet.left() > ROUNDS_SECONDS:
            self._add(min(INSERTED_AT_ONCE, size - self.ended) // GROUP)
        with self._work.engine.connect() as connection:
            settled = connection.execution_options(isolation_level="AUTOCOMMIT")
            settled.execute(text("SET statement_timeout = 0"))
            settled.execute(text("VACUUM (ANALYZE) rollouts, groups, runs"))
            settled.execute(text("RESET statement_timeout"))
        self._vacuuming(True)

    def _add(self, groups: int) -> None:
        first = self.ended // GROUP
        values = {"run": self._run, "version": self._version, "first": first, "last": first + groups - 1}
        with self._work() as session:
            session.execute(text("SET LOCAL session_replication_role = replica"))  # no foreign keys
            session.execute(text("SET LOCAL synchronous_commit = off"))
            for statement in (_ENDED_RUNS, _ENDED_GROUPS, _ENDED_ROLLOUTS):
                session.execute(text(statement), values)
        self.ended += groups * GROUP

    def _vacuuming(self, on: bool) -> None:
        """Whether the tables are vacuumed by themselves: not while they are filled."""
        with self._work() as session:
            for table in ("rollouts", "groups"):
                session.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = {on})"))

    def cost(self) -> float:
        """Median milliseconds of a grant to a runner that has just joined, with room for all."""
        self._runner = f"{RUNNER}-{new_id()}"
        with self._work() as session:
            fleet.join(session, self._runner, node=RUNNER, slots=100_000, version=version("tiltyard"))
        return statistics.median(self._round() for _ in range(ROUNDS)) / (GROUPS * GROUP)

    def _round(self) -> float:
        """Milliseconds until everything that one transaction queued is granted."""
        with self._work() as session:
            fleet.heartbeat(session, self._runner)
            rollouts.plan(session, [self._group(self._groups + n) for n in range(GROUPS)])
        self._groups += GROUPS
        with self._work() as session:
            queued_at = now(session)
        self._publisher.announce(DISPATCH)
        deadline = time.monotonic() + GRANTED_WITHIN
        while (left := self._queued()) and time.monotonic() < deadline:
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

    def _queued(self) -> int:
        with self._work() as session:
            return session.execute(text("SELECT count(*) FROM rollouts WHERE state = 'QUEUED'")).scalar_one()


_RUN_OF = f"'history-' || g / {RUN_GROUPS}"
_GROUP_OF = "'00000000-0000-7000-9000-' || lpad(to_hex(g), 12, '0')"
"""Ids as long as any, of the first milliseconds of 1970."""
_ENDED_RUNS = f"""
INSERT INTO runs (id, tenant_id, name, kind, state, config, taskset_id, deadline, finished_at)
SELECT 'history-' || n, r.tenant_id, 'history-' || n, r.kind, 'COMPLETED', r.config, r.taskset_id, r.deadline,
    r.deadline
FROM runs r, generate_series(CAST(:first AS bigint) / {RUN_GROUPS}, :last / {RUN_GROUPS}) AS n
WHERE r.id = :run
ON CONFLICT DO NOTHING
"""
_ENDED_GROUPS = f"""
INSERT INTO groups (id, run_id, version_id, "index", size, state, deadline)
SELECT {_GROUP_OF}, {_RUN_OF}, :version, g % {RUN_GROUPS}, {GROUP}, 'TRAINED', clock_timestamp()
FROM generate_series(CAST(:first AS bigint), :last) AS g
"""
_ENDED_ROLLOUTS = f"""
INSERT INTO rollouts (id, run_id, group_id, version_id, member, state, fence, seq, expires_at)
SELECT '00000000-0000-7000-8000-' || lpad(to_hex(g * {GROUP} + member), 12, '0'), {_RUN_OF}, {_GROUP_OF},
    :version, member, 'TRAINED', 1, 8, clock_timestamp()
FROM generate_series(CAST(:first AS bigint), :last) AS g, generate_series(0, {GROUP - 1}) AS member
"""


def _last_grant(session: Session) -> datetime:
    return session.execute(text("SELECT max(granted_at) FROM attempts")).scalar_one()


def _end_all(session: Session) -> None:
    """As if all granted ones had been trained on."""
    session.execute(text("UPDATE rollouts SET state = 'TRAINED' WHERE state = 'GRANTED'"))
    session.execute(text("UPDATE groups SET state = 'TRAINED' WHERE state = 'OPEN'"))
