"""Tasks: names, their immutable versions, the hidden parts, tasksets and the admissions that wait.

Guarantees: a submission's version, secret, memberships and QUEUED admission commit together; the same content
is the same version and is admitted once; a taskset holds one version of a task, the one submitted last.
Does not: decide whether a version is any good; an admission does (`store.admissions`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tiltyard.contracts.document import content_hash
from tiltyard.contracts.http import TaskSubmission
from tiltyard.store.database import new_id
from tiltyard.store.tables import Admission, Task, TaskSecret, Taskset, TasksetMember, TaskVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a submission became."""

    version_id: str
    digest: str
    name: str
    state: str
    admission_id: str | None
    """Its newest admission."""
    created: bool
    """Whether the content is new."""
    queued: bool
    """Whether an admission now waits that did not before."""


def submit(session: Session, tenant_id: str, submissions: Sequence[TaskSubmission]) -> list[Accepted]:
    """Store submissions whose names differ; one answer each, in their order."""
    by_name = {s.spec.name: s for s in submissions}
    if len(by_name) != len(submissions):
        raise ValueError("task names in one batch must differ")
    digests = {name: s.spec.version() for name, s in by_name.items()}
    tasks = _names(session, Task, tenant_id, by_name)
    created = _insert_versions(session, tasks, by_name, digests)
    versions = _versions(session, tasks, digests)
    _join_tasksets(session, tenant_id, tasks, versions, by_name)
    admissions, queued = _queue_admissions(session, by_name, versions)
    return [
        Accepted(
            version_id=versions[name].id,
            digest=digests[name],
            name=name,
            state=versions[name].state,
            admission_id=admissions.get(name),
            created=name in created,
            queued=name in queued,
        )
        for name in (s.spec.name for s in submissions)
    ]


def _names(
    session: Session, table: type[Task] | type[Taskset], tenant_id: str, names: Iterable[str]
) -> dict[str, str]:
    """Ids of named rows, made where they are absent; in one order, so that two batches cannot deadlock."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    rows = [{"id": new_id(), "tenant_id": tenant_id, "name": name} for name in wanted]
    session.execute(insert(table).values(rows).on_conflict_do_nothing())
    found = session.execute(
        select(table.name, table.id).where(table.tenant_id == tenant_id, table.name.in_(wanted))
    )
    return {row.name: row.id for row in found}


def _insert_versions(
    session: Session,
    tasks: Mapping[str, str],
    by_name: Mapping[str, TaskSubmission],
    digests: Mapping[str, str],
) -> set[str]:
    """Insert versions and their secrets; the names whose content is new."""
    ids = {name: new_id() for name in sorted(by_name)}
    rows = [
        {
            "id": ids[name],
            "task_id": tasks[name],
            "digest": digests[name],
            "public": by_name[name].spec.public().model_dump(mode="json"),
            "difficulty": by_name[name].spec.difficulty,
        }
        for name in ids
    ]
    statement = insert(TaskVersion).values(rows).on_conflict_do_nothing().returning(TaskVersion.id)
    new = set(session.execute(statement).scalars())
    secrets = [_secret(ids[name], by_name[name]) for name in ids if ids[name] in new]
    if secrets:
        session.execute(insert(TaskSecret), secrets)
    return {name for name, version_id in ids.items() if version_id in new}


def _secret(version_id: str, submission: TaskSubmission) -> dict[str, Any]:
    hidden = submission.spec.hidden()
    return {
        "version_id": version_id,
        "hidden": hidden.model_dump(mode="json"),
        "digest": content_hash(hidden),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    id: str
    state: str


def _versions(session: Session, tasks: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, _Version]:
    rows = session.execute(
        select(TaskVersion.id, TaskVersion.task_id, TaskVersion.digest, TaskVersion.state)
        .where(TaskVersion.task_id.in_(tasks.values()), TaskVersion.digest.in_(digests.values()))
        .order_by(TaskVersion.id)
        .with_for_update(key_share=True)
    ).all()
    found = {(row.task_id, row.digest): _Version(id=row.id, state=row.state) for row in rows}
    return {name: found[tasks[name], digests[name]] for name in tasks}


def _join_tasksets(
    session: Session,
    tenant_id: str,
    tasks: Mapping[str, str],
    versions: Mapping[str, _Version],
    by_name: Mapping[str, TaskSubmission],
) -> None:
    tasksets = _names(session, Taskset, tenant_id, (t for s in by_name.values() for t in s.tasksets))
    for taskset, taskset_id in sorted(tasksets.items()):
        members = sorted(name for name, s in by_name.items() if taskset in s.tasksets)
        ids = [versions[name].id for name in members]
        older = select(TaskVersion.id).where(
            TaskVersion.task_id.in_([tasks[name] for name in members]), TaskVersion.id.not_in(ids)
        )
        session.execute(
            delete(TasksetMember).where(
                TasksetMember.taskset_id == taskset_id, TasksetMember.version_id.in_(older)
            )
        )
        rows = [{"taskset_id": taskset_id, "version_id": version_id} for version_id in ids]
        session.execute(insert(TasksetMember).values(rows).on_conflict_do_nothing())


def _queue_admissions(
    session: Session, by_name: Mapping[str, TaskSubmission], versions: Mapping[str, _Version]
) -> tuple[dict[str, str], set[str]]:
    """Newest admission of each name, and the names for which one was queued: content without an admission, or
    whose last one failed by the platform's fault."""
    of_these = Admission.version_id.in_([v.id for v in versions.values()])
    last = select(func.max(Admission.id)).where(of_these).group_by(Admission.version_id)
    newest = session.execute(
        select(Admission.version_id, Admission.id, Admission.state).where(Admission.id.in_(last))
    ).all()
    standing = {row.version_id: row.id for row in newest if row.state != "FAILED"}
    admissions = {name: standing[v.id] for name, v in versions.items() if v.id in standing}
    rows = [
        {"id": new_id(), "version_id": versions[name].id, "repeats": by_name[name].repeats}
        for name in sorted(by_name)
        if name not in admissions
    ]
    if rows:
        session.execute(insert(Admission), rows)
    queued = {name for name in by_name if name not in admissions}
    by_version = {row["version_id"]: row["id"] for row in rows}
    return admissions | {name: by_version[versions[name].id] for name in queued}, queued


def resolve_taskset(session: Session, tenant_id: str, name: str) -> str | None:
    """The taskset's id, or None."""
    return session.execute(
        select(Taskset.id).where(Taskset.tenant_id == tenant_id, Taskset.name == name)
    ).scalar_one_or_none()
