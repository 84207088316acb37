"""Rows as the services write them, so that a test begins where its law does."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from tiltyard.contracts.http import TaskSubmission
from tiltyard.contracts.run_config import EvaluationRun, FreshPolicy, SftRun, TrainRun
from tiltyard.contracts.task_spec import AnswerComponent, Oracle, TaskSpec, Verifier
from tiltyard.core.capacity import ONE_SLOT, Capacity
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import MOVES, Actor, State, move_between
from tiltyard.store import attempts, fleet, gradings, policies, rollouts, runs, tasks, tenants
from tiltyard.store.attempts import Claim, Failed, Produced
from tiltyard.store.database import UnitOfWork
from tiltyard.store.gradings import Graded, ScoreRow
from tiltyard.store.moves import Key, Moved, move
from tiltyard.store.rollouts import Granting, NewGroup

TENANT = "default"
HOUR = timedelta(hours=1)
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """What a test asks about a rollout."""

    state: str
    fence: int
    seq: int
    incarnation: str | None
    reward: float | None
    losses: int
    infrastructure_failures: int
    alone: bool


class World:
    """One database, written through the store."""

    def __init__(self, work: UnitOfWork) -> None:
        self.work = work
        self._made = 0

    def sql(self, statement: str, **values: Any) -> None:
        with self.work() as session:
            session.execute(text(statement), values)

    def value(self, query: str, **values: Any) -> Any:
        with self.work() as session:
            return session.execute(text(query), values).scalar_one()

    def column(self, query: str, **values: Any) -> list[Any]:
        with self.work() as session:
            return list(session.execute(text(query), values).scalars())

    def name(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}-{self._made}"

    def tasks(
        self, taskset: str, count: int = 1, *, state: str = "ACTIVE", tenant: str = TENANT
    ) -> list[str]:
        """Ids of new task versions in the taskset."""
        submissions = [
            TaskSubmission(
                spec=TaskSpec(
                    name=self.name("task"),
                    instruction="Say yes.",
                    verifier=Verifier(components=(AnswerComponent(expected="yes"),)),
                    oracle=Oracle(answer="yes"),
                ),
                tasksets=(taskset,),
            )
            for _ in range(count)
        ]
        with self.work() as session:
            tenants.ensure(session, tenant)
            made = [a.version_id for a in tasks.submit(session, tenant, submissions)]
            session.execute(
                text("UPDATE task_versions SET state = :state WHERE id = ANY(:ids)"),
                {"state": state, "ids": made},
            )
        return made

    def sft(self) -> str:
        """A PENDING warm start."""
        with self.work() as session:
            tenants.ensure(session, TENANT)
            config = SftRun(kind="sft", name=self.name("sft"), dataset="sha256:" + "0" * 64)
            return runs.create(session, TENANT, config)

    def train(self, *, tasks: int = 1, published: bool = True, tenant: str = TENANT, **changes: Any) -> str:
        """A RUNNING training run over `tasks` tasks, with policy version 0 unless not `published`."""
        taskset = self.name("set")
        self.tasks(taskset, tasks, tenant=tenant)
        document = {
            "kind": "train",
            "name": self.name("run"),
            "taskset": taskset,
            "policy": FreshPolicy().model_dump(),
            **changes,
        }
        with self.work() as session:
            run = runs.create(session, tenant, TrainRun.model_validate(document))
            runs.start(session, run)
            if published:
                policies.publish(session, run, 0, step=None, prefix="p/", files={}, checkpoint=True)
        return run

    def evaluation(self, *, tasks: int = 1, **changes: Any) -> str:
        """A PENDING evaluation of a published policy over `tasks` tasks."""
        taskset = self.name("set")
        self.tasks(taskset, tasks)
        trained = self.train()
        self.sql("UPDATE runs SET state = 'COMPLETED' WHERE id = :id", id=trained)
        policy = self.value("SELECT name FROM runs WHERE id = :id", id=trained)
        document = {
            "kind": "evaluation",
            "name": self.name("run"),
            "taskset": taskset,
            "policy": f"{policy}@latest",
            **changes,
        }
        with self.work() as session:
            return runs.create(session, TENANT, EvaluationRun.model_validate(document))

    def group(
        self,
        run: str,
        size: int = 2,
        *,
        deadline: timedelta = HOUR,
        expires: timedelta = HOUR,
        demand: Capacity = ONE_SLOT,
    ) -> list[str]:
        """Plan one group over the run's first task; its rollouts' ids."""
        with self.work() as session:
            row = runs.get(session, run)
            planned = runs.count_planned(session, run, 1)
            assert planned is not None
            group = NewGroup(
                run_id=run,
                version_id=runs.planned_versions(session, row)[0],
                index=planned - 1,
                size=size,
                deadline_after=deadline,
                expires_after=expires,
                demand=demand,
            )
            return rollouts.plan(session, [group])

    def join(
        self, incarnation: str = "", *, node: str = "", slots: int = 8, version: str = "test", **more: Any
    ) -> str:
        """A runner; `more` may name its pool, cpu, memory_mb and gpu."""
        incarnation = incarnation or self.name("runner")
        with self.work() as session:
            fleet.join(session, incarnation, node=node or incarnation, slots=slots, version=version, **more)
        return incarnation

    def row(self, rollout: str) -> RolloutRow:
        with self.work() as session:
            found = session.execute(
                text(
                    "SELECT state, fence, seq, incarnation, reward, losses, infrastructure_failures, alone"
                    " FROM rollouts WHERE id = :id"
                ),
                {"id": rollout},
            ).one()
            return RolloutRow(**found._mapping)

    def key(self, rollout: str) -> Key:
        return Key(rollout_id=rollout, fence=self.row(rollout).fence)

    def state(self, rollout: str) -> str:
        return self.row(rollout).state

    def states(self, ids: Sequence[str]) -> list[str]:
        return [self.state(rollout) for rollout in ids]

    def grant(self, ids: Sequence[str], incarnation: str) -> list[Moved]:
        grants = [Granting(key=self.key(i), incarnation=incarnation, traceparent=TRACE) for i in ids]
        with self.work() as session:
            return rollouts.grant(session, grants)

    def claim(self, incarnation: str, limit: int = 32) -> list[Claim]:
        with self.work() as session:
            return attempts.claim(session, incarnation, limit)

    def aboard(self, ids: Sequence[str], incarnation: str) -> list[Key]:
        """Have the runner claim these QUEUED rollouts; their keys."""
        assert len(self.grant(ids, incarnation)) == len(ids)
        return [c.key for c in self.claim(incarnation, len(ids))]

    def end(self, key: Key, *, oldest: int = 0) -> Produced:
        return Produced(
            key=key,
            outcome=Outcome.COMPLETED,
            artifact=f"a/{key.rollout_id}/{key.fence}",
            sha256="0" * 64,
            oldest_version=oldest,
            newest_version=oldest,
        )

    def produce(self, keys: Sequence[Key], *, oldest: int = 0) -> set[str]:
        with self.work() as session:
            return attempts.produce(session, [self.end(k, oldest=oldest) for k in keys])

    def fail(self, key: Key, outcome: Outcome = Outcome.SANDBOX_FAILED) -> State | None:
        with self.work() as session:
            return attempts.fail(session, Failed(key=key, outcome=outcome, reason="broke", jitter=0.0))

    def score(self, rewards: dict[str, float]) -> set[str]:
        """Grade PRODUCED rollouts; gradings that counted."""
        with self.work() as session:
            claimed = gradings.claim(session, "grader", 10_000, HOUR)
            mine = [c for c in claimed if c.ticket.key.rollout_id in rewards]
            gradings.release(session, [c.ticket for c in claimed if c not in mine])
            score = ScoreRow(
                component="tests", value=1.0, weight=1.0, gate=False, tier=0, outcome=Outcome.GRADED
            )
            return gradings.commit(
                session,
                [
                    Graded(
                        ticket=c.ticket,
                        verifier="v",
                        outcome=Outcome.GRADED,
                        reward=rewards[c.ticket.key.rollout_id],
                        artifact="g",
                        scores=(score,),
                    )
                    for c in mine
                ],
            )

    def scored(self, run: str, rewards: Sequence[float], *, oldest: int = 0) -> list[str]:
        """A group whose members have these rewards."""
        ids = self.group(run, len(rewards))
        self.produce(self.aboard(ids, self.join(slots=len(ids))), oldest=oldest)
        assert len(self.score(dict(zip(ids, rewards, strict=True)))) == len(ids)
        return ids

    def walk(self, rollout: str, end: State) -> Key:
        """Move a QUEUED rollout along the shortest legal path; its key there."""
        for start, after in _path(end):
            actor = sorted(MOVES[start, after].actors)[0]
            self.step(rollout, after, actor)
        assert self.state(rollout) == end
        return self.key(rollout)

    def step(self, rollout: str, end: State, actor: Actor) -> None:
        key, start = self.key(rollout), State(self.state(rollout))
        if end is State.GRANTED:
            assert self.grant([rollout], self.join())
            return
        assert move_between(start, end, actor)
        with self.work() as session:
            assert move(session, [key], end, actor=actor, only_from=[start])


def _path(end: State) -> list[tuple[State, State]]:
    paths: dict[State, list[tuple[State, State]]] = {State.QUEUED: []}
    frontier = [State.QUEUED]
    while end not in paths:
        state = frontier.pop(0)
        for a, b in MOVES:
            if a is state and b not in paths:
                paths[b] = [*paths[state], (a, b)]
                frontier.append(b)
    return paths[end]
