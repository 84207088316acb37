"""A run under a fault, and everything that must hold after it.

Guarantees: a fault strikes while rollouts of the run are aboard; after it the run completes and the laws of
`_laws` hold.
Does not: time anything; waits are bounded for a hung test only."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from services.cli.stack import Stack
from tests.e2e.scenario import finished, train_run, wait_until
from tiltyard.client import Client
from tiltyard.contracts.http import RunView
from tiltyard.core.rollout import LIVING, State
from tiltyard.store import fleet
from tiltyard.store.database import UnitOfWork
from tiltyard.testing.processes import Processes
from tiltyard.testing.proxy import Proxy
from tiltyard.testing.servers import RabbitMQ

STEPS = 3
HUNG = 120.0
"""Seconds after which a run is taken for hung."""
TRACED = 6
"""Trained rollouts of a run whose traces are read."""
TELL = {"dispatcher", "runner", "rollout", "evaluator", "trainer"}
TERMINAL = sorted(str(state) for state in set(State) - LIVING)
ABOARD = ["GRANTED", "RUNNING", "PREEMPTING", "CANCELLING"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a fault led to."""

    fault: str
    rollouts: int
    fenced: int
    """Attempts that were taken from their runner."""
    again: int
    """Rollouts that went back to the queue."""
    dead: int
    """Rollouts that ended FAILED, DEAD, INVALID or EXPIRED."""
    seconds: float
    note: str = ""


ROWS: list[Row] = []


@dataclass(kw_only=True)
class Arena:
    """The stack, and what stands around it."""

    stack: Stack
    client: Client
    rabbitmq: RabbitMQ
    s3: Proxy
    """Between the stack and its S3 server."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count, init=False)

    def survives(self, fault: str, strike: Callable[[RunView], str | None], *, steps: int = STEPS) -> RunView:
        """Start a run, strike while rollouts are aboard, and hold it to the laws once it has ended."""
        started = time.monotonic()
        run = self.client.start_run(train_run(f"chaos-{next(self._numbers)}", steps=steps))
        self.until_running(run)
        note = strike(run)
        ended = finished(self.client, run, seconds=HUNG)
        assert ended.state == "COMPLETED", ended.reason
        assert ended.step == steps
        self._laws(run.id)
        ROWS.append(self._row(fault, run.id, time.monotonic() - started, note or ""))
        return ended

    def until_running(self, run: RunView) -> None:
        wait_until(lambda: self._running(run.id) > 0, seconds=HUNG, what="a rollout aboard")

    def _running(self, run_id: str) -> int:
        return self.value("SELECT count(*) FROM rollouts WHERE run_id = %s AND state = 'RUNNING'", run_id)

    def send(self, service: str, number: signal.Signals) -> None:
        os.kill(self.stack.pid(service), number)

    @contextmanager
    def frozen(self, service: str) -> Iterator[None]:
        """A service and its children stand still; some of them may end right after."""
        pids = [self.stack.pid(service), *_descendants(self.stack.pid(service))]
        _send_all(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _send_all(pids, signal.SIGCONT)

    def kill(self, service: str) -> None:
        """SIGKILL; its sandboxes and other children must follow it."""
        pid = self.stack.pid(service)
        children = _descendants(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _living(children), seconds=60, what=f"the end of {service}'s children")
        wait_until(lambda: self.stack.pid(service) != pid, seconds=60, what=f"a new {service}")

    def give_up(self, incarnations: Sequence[str]) -> list[str]:
        """As the reaper does, before their silence has lasted long enough; the rollouts that were aboard."""
        work = UnitOfWork(self.stack.database_url, application="tiltyard-chaos", connections=1)
        try:
            with work() as session:
                lost = [fleet.lose(session, one, "given up by a test") for one in incarnations]
            return [rollout for rollouts in lost for rollout in rollouts]
        finally:
            work.close()

    @contextmanager
    def second_dispatcher(self) -> Iterator[None]:
        """A standby beside the stack's own dispatcher, which leads."""
        log = self.stack.state.logs
        settings = {"database_url": self.stack.database_url, "broker_url": self.rabbitmq.url}
        with Processes(log, **settings, state_dir=str(self.stack.state.path)) as processes:
            processes.start("services.dispatcher")
            yield

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.stack.database_url) as connection:
            return connection.execute(query, values).fetchall()  # type: ignore[arg-type]

    def value(self, query: str, *values: Any) -> Any:
        ((value,),) = self.rows(query, *values)
        return value

    def _laws(self, run_id: str) -> None:
        """The ledger reconciles; one end each; nothing trained twice; no capacity leaked; whole traces."""
        ledger = self.client.ledger(run_id)
        assert ledger.discrepancies == ()
        assert ledger.balanced
        twice = self.rows(
            "SELECT t.rollout_id FROM transitions t JOIN rollouts r ON r.id = t.rollout_id"
            ' WHERE r.run_id = %s AND t."end" = ANY(%s) GROUP BY t.rollout_id HAVING count(*) > 1',
            run_id,
            TERMINAL,
        )
        assert twice == [], "these ended more than once"
        trained = self.rows(
            "SELECT policy_version, count(*) FROM training_steps WHERE run_id = %s AND state = 'COMMITTED'"
            " GROUP BY policy_version HAVING count(*) > 1",
            run_id,
        )
        assert trained == [], "these versions were trained more than once"
        aboard = "SELECT count(*) FROM rollouts WHERE run_id = %s AND state = ANY(%s)"
        wait_until(lambda: self.value(aboard, run_id, ABOARD) == 0, seconds=HUNG, what="an empty fleet")
        held = (
            "SELECT count(*) FROM gradings g JOIN rollouts r ON r.id = g.rollout_id"
            " WHERE r.run_id = %s AND g.state IN ('QUEUED', 'LEASED')"
        )
        assert self.value(held, run_id) == 0, "gradings of an ended run are held"
        for rollout in itertools.islice(self.client.rollouts(run=run_id, state="TRAINED"), TRACED):
            told = {str(span["service"]) for span in self.client.trace(rollout.id).spans}
            assert told >= TELL, f"the trace of {rollout.id} lacks {TELL - told}"

    def _row(self, fault: str, run_id: str, seconds: float, note: str) -> Row:
        ((rollouts, dead),) = self.rows(
            "SELECT count(*), count(*) FILTER (WHERE state IN ('FAILED', 'DEAD', 'INVALID', 'EXPIRED'))"
            " FROM rollouts WHERE run_id = %s",
            run_id,
        )
        ((fenced, again),) = self.rows(
            "SELECT count(*) FILTER (WHERE t.start IN ('GRANTED', 'RUNNING') AND t.actor = 'dispatcher'),"
            " count(*) FILTER (WHERE t.\"end\" = 'QUEUED' AND t.seq > 1)"
            " FROM transitions t JOIN rollouts r ON r.id = t.rollout_id WHERE r.run_id = %s",
            run_id,
        )
        return Row(
            fault=fault,
            rollouts=rollouts,
            fenced=fenced,
            again=again,
            dead=dead,
            seconds=seconds,
            note=note,
        )


def _send_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> set[int]:
    """Children of a process, and theirs."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if _state(pid) not in ("", "Z")]


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
