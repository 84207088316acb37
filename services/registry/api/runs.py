"""Routes of runs.

Guarantees: a run is addressed by its id or its name; its taskset has ACTIVE tasks, its policy is published
and its dataset is stored when it is made.
Does not: run anything; the dispatcher and trainers look at the rows."""

import asyncio
import difflib
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.registry import evaluation, ledger, replay
from services.registry.cursor import Cursor, Limit, decode, page
from services.registry.ports import Ports, Using
from tiltyard.contracts.document import Fault, InvalidDocument, parse
from tiltyard.contracts.http import (
    EvaluationView,
    Latency,
    LedgerView,
    Page,
    PolicyView,
    PriorityOrder,
    RunState,
    RunStats,
    RunView,
    StepView,
)
from tiltyard.contracts.messages import DISPATCH, TRAIN
from tiltyard.contracts.records import artifact_key
from tiltyard.contracts.run_config import EvaluationRun, SftRun, TrainRun
from tiltyard.store import runs
from tiltyard.store.views import rollouts as rollout_views
from tiltyard.store.views import runs as views
from tiltyard.web import body
from tiltyard.web.openapi import takes
from tiltyard.web.problem import Refusal

router = APIRouter(prefix="/v1/runs", tags=["runs"])
Config = SftRun | TrainRun | EvaluationRun
KINDS: dict[str, type[Config]] = {"sft": SftRun, "train": TrainRun, "evaluation": EvaluationRun}


def parse_config(data: object) -> Config:
    """A run config of its kind; raises `InvalidDocument`."""
    kind = data.get("kind") if isinstance(data, dict) else None
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        message = f"must be one of {', '.join(KINDS)}, not {kind!r}{hint}"
        raise InvalidDocument("run config", (Fault(path="kind", message=message),))
    return parse(model, data, what="run config")


async def _run_id(reference: str, ports: Using) -> str:
    return await ports.work.run(runs.find, ports.tenant, reference)


RunId = Annotated[str, Depends(_run_id)]


@router.post(
    "", status_code=201, response_model=RunView, openapi_extra=takes(SftRun, TrainRun, EvaluationRun)
)
async def start(request: Request, ports: Using, key: replay.Key = None) -> Response:
    """Start a run: `sft`, `train` or `evaluation`."""
    config = parse_config(await body.values(request, what="run config"))
    if isinstance(config, SftRun):
        await _dataset_is_stored(ports, config.dataset)

    def work(session: Session) -> replay.Done:
        run_id = runs.create(session, ports.tenant, config)
        view = views.run(session, ports.tenant, run_id)
        return replay.Done(status=201, body=view, announce=lambda: ports.publisher.announce(DISPATCH, TRAIN))

    return await replay.once(ports, request, key, work)


async def _dataset_is_stored(ports: Ports, digest: str) -> None:
    if not await asyncio.to_thread(ports.objects.exists, artifact_key(digest)):
        raise Refusal(422, f"dataset {digest} is not stored; upload it first with PUT /v1/artifacts")


@router.get("")
async def list_runs(
    ports: Using,
    state: RunState | None = None,
    kind: Literal["sft", "train", "evaluation"] | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RunView]:
    """Runs, newest first."""
    rows = await ports.work.run(
        views.runs, ports.tenant, state=state, kind=kind, after=decode("runs", cursor), limit=limit
    )
    return page("runs", rows)


@router.post("/{reference:path}/cancel")
async def cancel(run_id: RunId, ports: Using) -> RunView:
    """Cancel a run and everything that it has in flight; 409 for one that has ended otherwise."""

    def work(session: Session) -> RunView:
        runs.withdraw(session, run_id)
        return views.run(session, ports.tenant, run_id)

    view = await ports.work.run(work)
    ports.publisher.announce(DISPATCH, TRAIN)
    return view


@router.post("/{reference:path}/priority", openapi_extra=takes(PriorityOrder))
async def prioritise(run_id: RunId, request: Request, ports: Using) -> RunView:
    """Serve the run in another class: from the next turn on, and what it has aboard goes on."""
    order = parse(PriorityOrder, await body.values(request, what="priority"), what="priority")

    def work(session: Session) -> RunView:
        runs.prioritise(session, run_id, order.priority)
        return views.run(session, ports.tenant, run_id)

    view = await ports.work.run(work)
    ports.publisher.announce(DISPATCH)
    return view


@router.get("/{reference:path}/steps")
async def list_steps(
    run_id: RunId, ports: Using, cursor: Cursor = None, limit: Limit = 200
) -> Page[StepView]:
    """Training steps in order: the points of the run's curves."""
    after = decode("steps", cursor, numeric=True)
    return page("steps", await ports.work.run(views.steps, run_id, after=after, limit=limit))


@router.get("/{reference:path}/policies")
async def list_policies(
    run_id: RunId, ports: Using, cursor: Cursor = None, limit: Limit = 50
) -> Page[PolicyView]:
    """Policy versions, newest first."""
    after = decode("policies", cursor, numeric=True)
    return page("policies", await ports.work.run(views.policies, run_id, after=after, limit=limit))


@router.get("/{reference:path}/stats")
async def get_stats(run_id: RunId, ports: Using) -> RunStats:
    """What the run has come to, counted from its rows."""
    return await ports.work.run(views.stats, run_id)


@router.get("/{reference:path}/latency")
async def get_latency(run_id: RunId, ports: Using) -> Latency:
    """How fast the run's rollouts went through their states."""
    return await ports.work.run(views.latency, run_id)


@router.get("/{reference:path}/ledger")
async def get_ledger(run_id: RunId, ports: Using) -> LedgerView:
    """Whether the run's records, which are written separately, agree."""
    return await ledger.check(ports.work, ports.objects, run_id)


@router.get("/{reference:path}/evaluation")
async def get_evaluation(run_id: RunId, ports: Using) -> EvaluationView:
    """What an evaluation run measured, so far or finally."""
    run = await ports.work.run(runs.get, run_id)
    if not isinstance(run.config, EvaluationRun):
        raise Refusal(422, f"run {run.name!r} is a run of kind {run.kind}; only evaluation runs have this")
    scores = await ports.work.run(rollout_views.scores, run_id)
    rollouts = await ports.work.run(rollout_views.count, run_id)
    policy = f"{run.policy_run_id}@{run.policy_version}"
    return await asyncio.to_thread(evaluation.view, run_id, policy, rollouts, scores)


@router.get("/{reference:path}")
async def get_run(run_id: RunId, ports: Using) -> RunView:
    """One run."""
    return await ports.work.run(views.run, ports.tenant, run_id)
