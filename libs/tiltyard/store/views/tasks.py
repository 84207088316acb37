"""Task versions, tasksets and admissions as authors see them.

Guarantees: verifier and oracle are in no answer.
Does not: show versions of other tenants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import AdmissionView, TasksetView, TaskView
from tiltyard.contracts.task_spec import PublicSpec
from tiltyard.store.views.page import Keyset, page_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which task versions to list."""

    taskset: str | None = None
    state: str | None = None
    name: str | None = None
    """Part of the name."""
    tag: str | None = None


_TASK = """
SELECT v.id, v.digest, t.name, v.state, v.public, v.created_at,
    ARRAY(SELECT s.name FROM taskset_members m JOIN tasksets s ON s.id = m.taskset_id
          WHERE m.version_id = v.id ORDER BY s.name) AS tasksets
FROM task_versions v JOIN tasks t ON t.id = v.task_id
WHERE t.tenant_id = :tenant
"""
_ADMISSION = """
SELECT DISTINCT ON (a.version_id) a.version_id, a.id, a.state, a.repeats, a.oracle_passes, a.oracle_failures,
    a.noop_passes, a.noop_failures, a.report, a.finished_at
FROM admissions a {where} ORDER BY a.version_id, a.id DESC
"""


def tasks(
    session: Session, tenant_id: str, chosen: TaskFilter, *, after: str | None, limit: int
) -> Keyset[TaskView]:
    """Task versions, newest first."""
    conditions = {
        "v.id < :after": after,
        "v.state = :state": chosen.state,
        "position(lower(:name) in lower(t.name)) > 0": chosen.name,
        "v.public->'tags' @> to_jsonb(CAST(:tag AS text))": chosen.tag,
        "v.id IN (SELECT m.version_id FROM taskset_members m JOIN tasksets s ON s.id = m.taskset_id"
        " WHERE s.tenant_id = :tenant AND s.name = :taskset)": chosen.taskset,
    }
    asked = "".join(f" AND {sql}" for sql, value in conditions.items() if value is not None)
    rows = session.execute(
        text(f"{_TASK}{asked} ORDER BY v.id DESC LIMIT :limit"),
        {
            "tenant": tenant_id,
            "limit": limit + 1,
            "after": after,
            "state": chosen.state,
            "name": chosen.name,
            "tag": chosen.tag,
            "taskset": chosen.taskset,
        },
    ).all()
    admissions = _newest_admissions(session, [row.id for row in rows])
    return page_of(rows, limit, "id", lambda row: _task(row, admissions.get(row.id)))


def task(session: Session, tenant_id: str, reference: str) -> TaskView | None:
    """A version by digest or row id, or the newest version of a name."""
    row = session.execute(
        text(
            f"{_TASK} AND (v.digest = :reference OR v.id = :reference OR t.name = :reference)"
            " ORDER BY (v.digest = :reference OR v.id = :reference) DESC, v.id DESC LIMIT 1"
        ),
        {"tenant": tenant_id, "reference": reference},
    ).one_or_none()
    return None if row is None else _task(row, _newest_admissions(session, [row.id]).get(row.id))


def _newest_admissions(session: Session, version_ids: Sequence[str]) -> dict[str, AdmissionView]:
    rows = session.execute(
        text(_ADMISSION.format(where="WHERE a.version_id = ANY(:ids)")), {"ids": list(version_ids)}
    )
    return {row.version_id: _admission(row) for row in rows}


def _task(row: Any, admission: AdmissionView | None) -> TaskView:
    return TaskView(
        id=row.digest,
        name=row.name,
        state=row.state,
        spec=PublicSpec.model_validate(row.public),
        admission=admission,
        tasksets=tuple(row.tasksets),
        created_at=row.created_at,
    )


def admission(session: Session, tenant_id: str, admission_id: str) -> AdmissionView | None:
    """An admission by its id."""
    row = session.execute(
        text(
            "SELECT a.* FROM admissions a JOIN task_versions v ON v.id = a.version_id"
            " JOIN tasks t ON t.id = v.task_id WHERE a.id = :id AND t.tenant_id = :tenant"
        ),
        {"id": admission_id, "tenant": tenant_id},
    ).one_or_none()
    return None if row is None else _admission(row)


def _admission(row: Any) -> AdmissionView:
    clean = row.state == "DONE" and row.oracle_failures == 0 and row.oracle_passes > 0
    return AdmissionView(
        id=row.id,
        state=row.state,
        repeats=row.repeats,
        oracle_passes=row.oracle_passes,
        oracle_failures=row.oracle_failures,
        noop_passes=row.noop_passes,
        noop_failures=row.noop_failures,
        flake_bound=1 - 0.05 ** (1 / row.oracle_passes) if clean else None,
        report=row.report,
        finished_at=row.finished_at,
    )


_TASKSET = """
SELECT s.name, count(v.id) AS tasks, count(*) FILTER (WHERE v.state = 'ACTIVE') AS active,
    count(*) FILTER (WHERE v.state = 'QUARANTINED') AS quarantined,
    count(*) FILTER (WHERE v.state = 'SUBMITTED') AS submitted
FROM tasksets s LEFT JOIN taskset_members m ON m.taskset_id = s.id
LEFT JOIN task_versions v ON v.id = m.version_id
WHERE s.tenant_id = :tenant AND {where} GROUP BY s.name ORDER BY s.name LIMIT :limit
"""


def tasksets(session: Session, tenant_id: str, *, after: str | None, limit: int) -> Keyset[TasksetView]:
    """Tasksets by name, with how many of their tasks are in which state."""
    rows = session.execute(
        text(_TASKSET.format(where="s.name > :after")),
        {"tenant": tenant_id, "after": after or "", "limit": limit + 1},
    ).all()
    return page_of(rows, limit, "name", lambda row: TasksetView.model_validate(dict(row._mapping)))


def taskset(session: Session, tenant_id: str, name: str) -> TasksetView | None:
    row = session.execute(
        text(_TASKSET.format(where="s.name = :name")), {"tenant": tenant_id, "name": name, "limit": 1}
    ).one_or_none()
    return None if row is None else TasksetView.model_validate(dict(row._mapping))
