"""Runs: made, started, looked up, ended.

Guarantees: a run's policy reference is pinned to an integer when the run is made; ending a run cancels what
it still had in flight in the same transaction.
Does not: validate the config (`contracts.run_config`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.run_config import EvaluationRun, RunConfig, SftRun, TrainRun, demand_of
from tiltyard.contracts.task_spec import Resources
from tiltyard.core.rollout import Actor
from tiltyard.store import fleet, policies, tenants
from tiltyard.store.database import new_id
from tiltyard.store.moves import keys_where
from tiltyard.store.rollouts import cancel

_CONFIG: TypeAdapter[SftRun | TrainRun | EvaluationRun] = TypeAdapter(RunConfig)


class NoSuchRun(LookupError):
    """No run of the tenant has this id or name."""


class NameTaken(ValueError):
    """The tenant has another run of this name."""


class HasEnded(ValueError):
    """The run is past what was asked of it."""


class NothingToRun(ValueError):
    """The taskset is unknown, or has no ACTIVE task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run, as its rows tell."""

    id: str
    tenant_id: str
    name: str
    kind: str
    state: str
    config: SftRun | TrainRun | EvaluationRun
    taskset_id: str | None
    policy_run_id: str | None
    policy_version: int | None
    fence: int
    groups_planned: int


def create(session: Session, tenant_id: str, config: SftRun | TrainRun | EvaluationRun) -> str:
    """Insert a PENDING run and return its id.

    Raises `NameTaken`, `NothingToRun`, `policies.NoSuchPolicy`, `fleet.Unplaceable` or
    `tenants.QueueFull`."""
    tenants.has_room(session, tenant_id)
    policy = (
        policies.resolve(session, tenant_id, config.policy)
        if isinstance(config.policy, str)
        else policies.Reference(run_id=None, version=None)
    )
    taskset = None if isinstance(config, SftRun) else _taskset(session, tenant_id, config.taskset)
    if not isinstance(config, SftRun):
        _is_placeable(session, config, taskset)
    run_id = new_id()
    made = session.execute(
        text(
            "INSERT INTO runs (id, tenant_id, name, kind, config, taskset_id, policy_run_id,"
            " policy_version, deadline)"
            " VALUES (:id, :tenant, :name, :kind, CAST(:config AS jsonb), :taskset, :policy_run,"
            " :policy_version,"
            " clock_timestamp() + :deadline) ON CONFLICT (tenant_id, name) DO NOTHING RETURNING id"
        ),
        {
            "id": run_id,
            "tenant": tenant_id,
            "name": config.name,
            "kind": config.kind,
            "config": config.model_dump_json(),
            "taskset": taskset,
            "policy_run": policy.run_id,
            "policy_version": policy.version,
            "deadline": timedelta(seconds=config.deadline_seconds),
        },
    ).one_or_none()
    if made is None:
        raise NameTaken(f"a run named {config.name!r} exists; choose another name")
    return run_id


def _is_placeable(session: Session, config: TrainRun | EvaluationRun, taskset: str | None) -> None:
    rows = session.execute(
        text(
            "SELECT DISTINCT v.public->'interface'->>'kind' AS kind, v.public->'environment'->'resources' AS"
            " resources FROM taskset_members m JOIN task_versions v ON v.id = m.version_id"
            " WHERE m.taskset_id = :taskset AND v.state = 'ACTIVE'"
        ),
        {"taskset": taskset},
    )
    rules = config.rollouts
    demands = [
        demand_of(rules.demand, r.kind or "answer", Resources.model_validate(r.resources or {})) for r in rows
    ]
    fleet.can_host(session, rules.pool, demands)


def _taskset(session: Session, tenant_id: str, name: str) -> str:
    row = session.execute(
        text(
            "SELECT s.id, count(*) FILTER (WHERE v.state = 'ACTIVE') AS active, count(v.id) AS members FROM"
            " tasksets s"
            " LEFT JOIN taskset_members m ON m.taskset_id = s.id LEFT JOIN task_versions v ON v.id ="
            " m.version_id"
            " WHERE s.tenant_id = :tenant AND s.name = :name GROUP BY s.id"
        ),
        {"tenant": tenant_id, "name": name},
    ).one_or_none()
    if row is None:
        raise NothingToRun(f"there is no taskset {name!r}; `tiltyard task list` shows the tasksets there are")
    if not row.active:
        raise NothingToRun(
            f"taskset {name!r} has no ACTIVE task among its {row.members}; wait for their admission or mend"
            f" them"
        )
    return row.id


_ROW = (
    "SELECT id, tenant_id, name, kind, state, config, taskset_id, policy_run_id, policy_version, fence,"
    " groups_planned FROM runs"
)


def _run(row: Any) -> RunRow:
    return RunRow(**{**row._mapping, "config": _CONFIG.validate_python(row.config)})


def get(session: Session, run_id: str) -> RunRow:
    """The run of this id; raises `NoSuchRun`."""
    row = session.execute(text(f"{_ROW} WHERE id = :id"), {"id": run_id}).one_or_none()
    if row is None:
        raise NoSuchRun(f"there is no run {run_id!r}")
    return _run(row)


def find(session: Session, tenant_id: str, name_or_id: str) -> str:
    """The id of the tenant's run with this id or name; raises `NoSuchRun`."""
    found = session.execute(
        text(
            "SELECT id FROM runs WHERE tenant_id = :tenant AND (id = :key OR name = :key) ORDER BY id ="
            " :key DESC"
        ),
        {"tenant": tenant_id, "key": name_or_id},
    ).scalar()
    if found is None:
        raise NoSuchRun(f"there is no run {name_or_id!r}; `tiltyard run list` shows the runs there are")
    return found


def living(session: Session, kinds: Sequence[str]) -> list[RunRow]:
    """PENDING and RUNNING runs of these kinds, oldest first."""
    rows = session.execute(
        text(f"{_ROW} WHERE state IN ('PENDING', 'RUNNING') AND kind = ANY(:kinds) ORDER BY created_at"),
        {"kinds": list(kinds)},
    )
    return [_run(row) for row in rows]


def start(session: Session, run_id: str) -> None:
    """PENDING → RUNNING; a run that is past that stays as it is."""
    session.execute(
        text(
            "UPDATE runs SET state = 'RUNNING', started_at = clock_timestamp() WHERE id = :id AND state ="
            " 'PENDING'"
        ),
        {"id": run_id},
    )


def finish(session: Session, run_id: str, state: str, *, actor: Actor, reason: str = "") -> bool:
    """End a living run as COMPLETED, FAILED or CANCELLED and cancel what is in flight; False if it had
    ended."""
    ended = session.execute(
        text(
            "UPDATE runs SET state = :state, reason = :reason, finished_at = clock_timestamp(), holder ="
            " NULL,"
            " lease_until = NULL, fence = fence + 1 WHERE id = :id AND state IN ('PENDING', 'RUNNING')"
            " RETURNING id"
        ),
        {"id": run_id, "state": state, "reason": reason},
    ).one_or_none()
    if ended is None:
        return False
    sweep(session, run_id, actor=actor, reason=f"its run ended: {state}")
    return True


def withdraw(session: Session, run_id: str) -> None:
    """Cancel a run for a person; one that is CANCELLED already stays so. Raises `HasEnded`."""
    if not finish(session, run_id, "CANCELLED", actor=Actor.REGISTRY, reason="cancelled over the API"):
        run = get(session, run_id)
        if run.state != "CANCELLED":
            raise HasEnded(f"run {run.name!r} is {run.state}: there is nothing left to cancel")


def prioritise(session: Session, run_id: str, priority: str) -> None:
    """Serve the run in another class from the next turn on. Raises `HasEnded`."""
    changed = session.execute(
        text(
            "UPDATE runs SET config = jsonb_set(config, '{priority}', to_jsonb(CAST(:priority AS text)))"
            " WHERE id = :id AND state IN ('PENDING', 'RUNNING') RETURNING id"
        ),
        {"id": run_id, "priority": priority},
    ).one_or_none()
    if changed is None:
        run = get(session, run_id)
        raise HasEnded(f"run {run.name!r} is {run.state}: its priority no longer matters")


LEFT_OVER = (
    "r.run_id = :run AND r.state = ANY(ARRAY['QUEUED', 'GRANTED', 'RUNNING', 'PREEMPTING', 'PRODUCED',"
    " 'SCORED',"
    " 'READY', 'TRAINING'])"
)


def sweep(session: Session, run_id: str, *, actor: Actor, reason: str) -> int:
    """Cancel what an ended run left in flight and withdraw its open step; how many rollouts that were."""
    session.execute(
        text("UPDATE training_steps SET state = 'WITHDRAWN' WHERE run_id = :run AND state = 'STARTED'"),
        {"run": run_id},
    )
    session.execute(
        text(
            "UPDATE groups SET state = 'CANCELLED', reason = :reason WHERE state = 'TRAINED' AND id IN ("
            " SELECT g.group_id FROM step_groups g JOIN training_steps s ON s.run_id = g.run_id"
            " AND s.step = g.step WHERE g.run_id = :run AND s.state = 'WITHDRAWN')"
        ),
        {"run": run_id, "reason": reason},
    )
    session.execute(
        text(
            "DELETE FROM step_groups g USING training_steps s WHERE g.run_id = :run AND s.run_id = g.run_id"
            " AND s.step = g.step AND s.state = 'WITHDRAWN'"
        ),
        {"run": run_id},
    )
    left = keys_where(session, LEFT_OVER, {"run": run_id}, lock=True)
    cancel(session, left, actor=actor, reason=reason)
    session.execute(
        text(
            "UPDATE groups SET state = 'CANCELLED', reason = :reason, settled_at = clock_timestamp()"
            " WHERE run_id = :run AND state IN ('OPEN', 'READY')"
        ),
        {"run": run_id, "reason": reason},
    )
    return len(left)


def planned_versions(session: Session, run: RunRow) -> list[str]:
    """Row ids of the ACTIVE task versions of the run's taskset, by digest."""
    return list(
        session.execute(
            text(
                "SELECT v.id FROM taskset_members m JOIN task_versions v ON v.id = m.version_id"
                " WHERE m.taskset_id = :taskset AND v.state = 'ACTIVE' ORDER BY v.digest"
            ),
            {"taskset": run.taskset_id},
        ).scalars()
    )


def needs(session: Session, version_ids: Sequence[str]) -> dict[str, tuple[str, Resources]]:
    """What each task version asks of a runner: the kind of its interface, and its environment's resources."""
    rows = session.execute(
        text(
            "SELECT id, public->'interface'->>'kind' AS kind, public->'environment'->'resources' AS resources"
            " FROM task_versions WHERE id = ANY(:ids)"
        ),
        {"ids": sorted(set(version_ids))},
    )
    return {r.id: (r.kind or "answer", Resources.model_validate(r.resources or {})) for r in rows}


def unplanned_versions(session: Session, run: RunRow) -> list[str]:
    """Those of `planned_versions` that have no group in the run yet, in the same order."""
    planned = set(
        session.execute(text("SELECT version_id FROM groups WHERE run_id = :run"), {"run": run.id}).scalars()
    )
    return [version for version in planned_versions(session, run) if version not in planned]


def count_planned(session: Session, run_id: str, groups: int) -> int | None:
    """Count `groups` more draws of a living run; how many it has now, or None when it has ended.

    It cannot end before this transaction does, so that what is planned with it is swept with it."""
    return session.execute(
        text(
            "UPDATE runs SET groups_planned = groups_planned + :n"
            " WHERE id = :id AND state IN ('PENDING', 'RUNNING') RETURNING groups_planned"
        ),
        {"n": groups, "id": run_id},
    ).scalar_one_or_none()


def overdue(session: Session) -> list[str]:
    """Ids of living runs past their deadline."""
    return list(
        session.execute(
            text("SELECT id FROM runs WHERE state IN ('PENDING', 'RUNNING') AND deadline < clock_timestamp()")
        ).scalars()
    )
