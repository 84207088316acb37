"""A small world of rows: a tenant, a task, a run, and rollouts wherever a test wants them.

Guarantees: every row is written by the store's own functions, in the order in which services call them.
Does not: start a service."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from tiltyard.contracts.http import TaskSubmission
from tiltyard.contracts.run_config import FreshPolicy, TrainRun
from tiltyard.contracts.task_spec import Case, CasesComponent, Interface, Oracle, TaskSpec, Verifier
from tiltyard.core.outcome import Outcome
from tiltyard.store import attempts, fleet, rollouts, runs, tasks
from tiltyard.store.attempts import Claim, Produced
from tiltyard.store.database import UnitOfWork
from tiltyard.store.moves import Key
from tiltyard.store.rollouts import Granting, NewGroup

TENANT = "default"


def traceparent(rollout_id: str) -> str:
    """The trace that `Rows.grant` gives to an attempt at this rollout."""
    return f"00-{rollout_id.replace('-', '')}-0123456789abcdef-01"


def addition(name: str = "add/1", **changes: Any) -> TaskSpec:
    """A task whose right answer is `return x+1`."""
    cases = CasesComponent(
        kind="cases", entry_point="f", cases=(Case(args=(1,), expected=2), Case(args=(5,), expected=6))
    )
    fields: dict[str, Any] = {
        "name": name,
        "instruction": "add 1\n",
        "interface": Interface(prefix="def f(x):\n    ", stop=("\n",)),
        "verifier": Verifier(components=(cases,)),
        "oracle": Oracle(answer="return x+1"),
    }
    return TaskSpec(**{**fields, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """Ids of a run over one task."""

    run_id: str
    version_id: str
    admission_id: str


class Rows:
    """Writes rows through the store."""

    def __init__(self, work: UnitOfWork) -> None:
        self.work = work
        self._groups = 0

    def task(self, spec: TaskSpec | None = None, *, repeats: int = 1) -> tuple[str, str]:
        """Submit a task; ids of its version and admission."""
        submission = TaskSubmission(spec=spec or addition(), tasksets=("set",), repeats=repeats)
        with self.work() as session:
            session.execute(
                text("INSERT INTO tenants (id) VALUES (:id) ON CONFLICT DO NOTHING"), {"id": TENANT}
            )
            (accepted,) = tasks.submit(session, TENANT, [submission])
        assert accepted.admission_id is not None
        return accepted.version_id, accepted.admission_id

    def run(self, spec: TaskSpec | None = None, **rules: Any) -> Seeded:
        """A RUNNING training run over one ACTIVE task."""
        version_id, admission_id = self.task(spec)
        config = TrainRun.model_validate(
            {
                "kind": "train",
                "name": "r",
                "taskset": "set",
                "policy": FreshPolicy().model_dump(),
                "rollouts": rules,
            }
        )
        with self.work() as session:
            session.execute(
                text("UPDATE task_versions SET state = 'ACTIVE' WHERE id = :id"), {"id": version_id}
            )
            session.execute(text("UPDATE admissions SET state = 'DONE' WHERE id = :id"), {"id": admission_id})
            run_id = runs.create(session, TENANT, config)
            session.execute(text("UPDATE runs SET state = 'RUNNING' WHERE id = :id"), {"id": run_id})
        return Seeded(run_id=run_id, version_id=version_id, admission_id=admission_id)

    def group(self, seeded: Seeded, size: int = 2) -> list[str]:
        """Plan one group; its rollouts' ids."""
        group = NewGroup(
            run_id=seeded.run_id,
            version_id=seeded.version_id,
            index=self._groups,
            size=size,
            deadline_after=timedelta(hours=1),
            expires_after=timedelta(hours=1),
        )
        self._groups += 1
        with self.work() as session:
            return rollouts.plan(session, [group])

    def grant(self, rollout_ids: Sequence[str], incarnation: str) -> None:
        """Grant QUEUED rollouts to a runner."""
        with self.work() as session:
            query = text("SELECT id, fence FROM rollouts WHERE id = ANY(:ids)")
            fences = {row.id: row.fence for row in session.execute(query, {"ids": list(rollout_ids)})}
            grants = [
                Granting(
                    key=Key(rollout_id=i, fence=fences[i]),
                    incarnation=incarnation,
                    traceparent=traceparent(i),
                )
                for i in rollout_ids
            ]
            moved = rollouts.grant(session, grants)
        assert len(moved) == len(rollout_ids)

    def aboard(self, seeded: Seeded, size: int = 2, *, incarnation: str = "runner-1") -> list[Claim]:
        """A group whose rollouts a runner has claimed."""
        ids = self.group(seeded, size)
        with self.work() as session:
            known = session.execute(
                text("SELECT 1 FROM runners WHERE incarnation = :me AND alive"), {"me": incarnation}
            ).one_or_none()
            if known is None:
                fleet.join(session, incarnation, node=incarnation, slots=1_000, version="test")
        self.grant(ids, incarnation)
        with self.work() as session:
            return attempts.claim(session, incarnation, len(ids))

    def produced(self, seeded: Seeded, size: int = 2) -> list[Claim]:
        """A group whose attempts have ended and wait for gradings; no artifact is stored."""
        claims = self.aboard(seeded, size)
        ends = [
            Produced(
                key=c.key,
                outcome=Outcome.COMPLETED,
                artifact=f"runs/{c.run_id}/rollouts/{c.rollout_id}/{c.fence}/attempt.json.gz",
                sha256="0" * 64,
                oldest_version=0,
                newest_version=0,
            )
            for c in claims
        ]
        with self.work() as session:
            assert len(attempts.produce(session, ends)) == size
        return claims

    def value(self, query: str, **values: Any) -> Any:
        """The single value that a query gives."""
        with self.work() as session:
            return session.execute(text(query), values).scalar_one()

    def column(self, query: str, **values: Any) -> list[Any]:
        """The first value of each row."""
        with self.work() as session:
            return list(session.execute(text(query), values).scalars())

    def states(self, seeded: Seeded) -> list[str]:
        """States of the run's rollouts, in order of their ids."""
        with self.work() as session:
            query = text("SELECT state FROM rollouts WHERE run_id = :run ORDER BY id")
            return list(session.execute(query, {"run": seeded.run_id}).scalars())
