"""Routes of tasks, tasksets and admissions.

Guarantees: a new version and its admission commit together, and the admission is announced after that.
Does not: show a verifier or an oracle to anybody."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.registry import replay
from services.registry.cursor import Cursor, Limit, decode, page
from services.registry.ports import Ports, Using
from tiltyard.contracts.document import Fault, InvalidDocument
from tiltyard.contracts.http import (
    AdmissionView,
    Page,
    TaskAccepted,
    TaskBatch,
    TasksetView,
    TaskState,
    TaskSubmission,
    TaskView,
)
from tiltyard.contracts.messages import ADMIT
from tiltyard.store import tasks
from tiltyard.store.views import tasks as views
from tiltyard.web.body import document
from tiltyard.web.openapi import takes
from tiltyard.web.problem import missing

router = APIRouter(prefix="/v1", tags=["tasks"])


class TasksAccepted(Page[TaskAccepted]):
    """What each submission of a batch became, in its order; there is no further page."""


@router.post("/tasks", status_code=201, response_model=TaskAccepted, openapi_extra=takes(TaskSubmission))
async def submit(request: Request, ports: Using, key: replay.Key = None) -> Response:
    """Submit a task. 201: new content, queued for admission. 200: the same content was submitted before."""
    submission = await document(request, TaskSubmission, what="task submission")

    def work(session: Session) -> replay.Done:
        made = tasks.submit(session, ports.tenant, [submission])
        return _done(ports, made, _accepted(made[0]))

    return await replay.once(ports, request, key, work)


@router.post("/tasks:batch", status_code=201, response_model=TasksAccepted, openapi_extra=takes(TaskBatch))
async def submit_batch(request: Request, ports: Using, key: replay.Key = None) -> Response:
    """Submit up to 500 tasks, all or none. 200 when none of the content is new."""
    batch = await document(request, TaskBatch, what="task batch")
    _names_differ(batch)

    def work(session: Session) -> replay.Done:
        made = tasks.submit(session, ports.tenant, batch.tasks)
        return _done(ports, made, TasksAccepted(items=tuple(map(_accepted, made))))

    return await replay.once(ports, request, key, work)


def _names_differ(batch: TaskBatch) -> None:
    first: dict[str, int] = {}
    faults = [
        Fault(
            path=f"tasks.{index}.spec.name",
            message=f"{submission.spec.name!r} is the name of tasks.{first[submission.spec.name]} too;"
            " give each task of a batch its own name, or send a later version in a later request",
        )
        for index, submission in enumerate(batch.tasks)
        if first.setdefault(submission.spec.name, index) != index
    ]
    if faults:
        raise InvalidDocument("task batch", tuple(faults))


def _accepted(made: tasks.Accepted) -> TaskAccepted:
    return TaskAccepted(id=made.digest, name=made.name, state=made.state, admission_id=made.admission_id)  # type: ignore[arg-type]


def _done(ports: Ports, made: Sequence[tasks.Accepted], body: TaskAccepted | TasksAccepted) -> replay.Done:
    waiting = tuple(m.admission_id for m in made if m.queued and m.admission_id)
    return replay.Done(
        status=201 if any(m.created for m in made) else 200,
        body=body,
        announce=lambda: ports.publisher.enqueue(ADMIT, waiting) if waiting else None,
    )


@router.get("/tasks")
async def list_tasks(
    ports: Using,
    taskset: Annotated[str | None, Query(max_length=200, description="Members of this taskset.")] = None,
    state: TaskState | None = None,
    name: Annotated[str | None, Query(max_length=200, description="Part of the name.")] = None,
    tag: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[TaskView]:
    """Task versions, newest first."""
    chosen = views.TaskFilter(taskset=taskset, state=state, name=name, tag=tag)
    rows = await ports.work.run(views.tasks, ports.tenant, chosen, after=decode("tasks", cursor), limit=limit)
    return page("tasks", rows)


@router.get("/tasks/{reference:path}")
async def get_task(reference: str, ports: Using) -> TaskView:
    """A task version by its id, or the newest version of a name."""
    found = await ports.work.run(views.task, ports.tenant, reference)
    if found is None:
        raise missing("task", reference, "`tiltyard task list` shows the tasks there are")
    return found


@router.get("/tasksets")
async def list_tasksets(ports: Using, cursor: Cursor = None, limit: Limit = 50) -> Page[TasksetView]:
    """Tasksets by name, with how many of their tasks are in which state."""
    rows = await ports.work.run(views.tasksets, ports.tenant, after=decode("tasksets", cursor), limit=limit)
    return page("tasksets", rows)


@router.get("/tasksets/{name:path}")
async def get_taskset(name: str, ports: Using) -> TasksetView:
    """One taskset."""
    found = await ports.work.run(views.taskset, ports.tenant, name)
    if found is None:
        raise missing("taskset", name, "a taskset is made by submitting a task to it")
    return found


@router.get("/admissions/{admission_id}")
async def get_admission(admission_id: str, ports: Using) -> AdmissionView:
    """How a task version was admitted, or why it was not."""
    found = await ports.work.run(views.admission, ports.tenant, admission_id)
    if found is None:
        raise missing("admission", admission_id)
    return found
