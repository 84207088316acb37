"""Routes of rollouts.

Guarantees: a record that a row points to and the object store does not give is named in `missing`, with the
error; it is never left out in silence.
Does not: read objects of other runs; keys come from rows alone."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query

from services.registry.cursor import Cursor, Limit, decode, page
from services.registry.grant_span import span_of
from services.registry.ports import Ports, Using
from tiltyard.contracts.document import Document, InvalidDocument
from tiltyard.contracts.http import BrokerLetter, Page, RolloutDetail, RolloutView, TraceView
from tiltyard.contracts.messages import DISPATCH
from tiltyard.contracts.records import AttemptRecord, GradingRecord, Span, StepManifest, unpack
from tiltyard.core.rollout import State
from tiltyard.objects import ObjectError, ObjectStore
from tiltyard.store import dead_letters, runs
from tiltyard.store.views import rollouts as views
from tiltyard.web.problem import missing

router = APIRouter(prefix="/v1", tags=["rollouts"])
R = TypeVar("R", bound=Document)


@router.get("/rollouts")
async def list_rollouts(
    ports: Using,
    run: Annotated[str | None, Query(max_length=200, description="Id or name of a run.")] = None,
    state: State | None = None,
    task: Annotated[str | None, Query(max_length=200, description="Id or name of a task.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RolloutView]:
    """Rollouts, newest first."""
    run_id = None if run is None else await ports.work.run(runs.find, ports.tenant, run)
    chosen = views.RolloutFilter(run_id=run_id, state=state, task=task)
    rows = await ports.work.run(
        views.rollouts, ports.tenant, chosen, after=decode("rollouts", cursor), limit=limit
    )
    return page("rollouts", rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is kept of a rollout."""

    grants: tuple[views.Grant, ...]
    attempts: tuple[AttemptRecord, ...]
    gradings: tuple[GradingRecord, ...]
    step: StepManifest | None
    missing: tuple[str, ...]


async def kept(ports: Ports, rollout_id: str) -> views.Kept:
    """The rows of a rollout; raises `Refusal` (404)."""
    found = await ports.work.run(views.rollout, ports.tenant, rollout_id)
    if found is None:
        raise missing("rollout", rollout_id, "`tiltyard rollout list` shows the rollouts there are")
    return found


def read_records(objects: ObjectStore, rows: views.Kept) -> Records:
    """Every record that the rows point to; blocks."""
    lost: list[str] = []

    def read(model: type[R], keys: tuple[str, ...]) -> tuple[R, ...]:
        found: list[R] = []
        for key in keys:
            try:
                found.append(unpack(model, objects.get(key), what=key))
            except (ObjectError, InvalidDocument, ValueError) as error:
                lost.append(f"{key}: {error}")
        return tuple(found)

    return Records(
        grants=rows.grants,
        attempts=read(AttemptRecord, tuple(g.artifact for g in rows.grants if g.artifact)),
        gradings=read(GradingRecord, rows.gradings),
        step=next(iter(read(StepManifest, () if rows.step is None else (rows.step,))), None),
        missing=tuple(lost),
    )


@router.get("/rollouts/{rollout_id}")
async def get_rollout(rollout_id: str, ports: Using) -> RolloutDetail:
    """A rollout with its transitions, attempts and gradings."""
    rows = await kept(ports, rollout_id)
    records = await asyncio.to_thread(read_records, ports.objects, rows)
    return RolloutDetail(
        rollout=rows.rollout,
        transitions=rows.transitions,
        attempts=records.attempts,
        gradings=records.gradings,
        missing=records.missing,
    )


@router.post("/rollouts/{rollout_id}/redrive")
async def redrive(rollout_id: str, ports: Using) -> RolloutView:
    """Send a rollout that came to nothing back to the queue, under a new fence; 409 for any other."""
    await ports.work.run(dead_letters.redrive, ports.tenant, rollout_id)
    rows = await kept(ports, rollout_id)  # says 404 where there was none
    ports.publisher.announce(DISPATCH)
    return rows.rollout


@router.get("/dead-letters")
async def list_dead_letters(ports: Using) -> Page[BrokerLetter]:
    """Messages that the broker gave up on, newest first; at most 500."""
    return Page(items=await ports.work.run(dead_letters.letters, 500))


@router.get("/rollouts/{rollout_id}/trace")
async def get_trace(rollout_id: str, ports: Using) -> TraceView:
    """Every span that is kept of a rollout: its attempts, its gradings and the step that trained on it."""
    rows = await kept(ports, rollout_id)
    records = await asyncio.to_thread(read_records, ports.objects, rows)
    return TraceView(rollout_id=rollout_id, spans=spans_of(records))


def spans_of(records: Records) -> tuple[Span, ...]:
    """Spans of all records, each once, by start."""
    groups = [tuple(span_of(grant) for grant in records.grants)]
    groups += [r.spans for r in (*records.attempts, *records.gradings)]
    groups += [records.step.spans] if records.step else []
    by_id = {(s.get("trace_id"), s.get("span_id")): s for spans in groups for s in spans}
    return tuple(sorted(by_id.values(), key=lambda s: str(s.get("start_ns", 0)).zfill(20)))
