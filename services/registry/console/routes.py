"""The console's pages.

Guarantees: each page is made from the same queries that the API answers with.
Does not: change anything."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from services.registry import evaluation
from services.registry.api.rollouts import kept, read_records, spans_of
from services.registry.api.runs import RunId
from services.registry.console.chart import SMALL, Chart, Point, chart
from services.registry.console.conversation import turns_of
from services.registry.console.entry import inside
from services.registry.console.page import Pages
from services.registry.cursor import decode, encode
from services.registry.ledger import Recent
from services.registry.ports import Ports, Using
from tiltyard.contracts.http import RunView, StepView, TaskState
from tiltyard.contracts.run_config import EvaluationRun
from tiltyard.core.outcome import RULINGS, Outcome
from tiltyard.core.rollout import State
from tiltyard.store import runs
from tiltyard.store.views import rollouts as rollout_views
from tiltyard.store.views import runs as run_views
from tiltyard.store.views import tasks as task_views
from tiltyard.store.views.page import Keyset
from tiltyard.telemetry.waterfall import waterfall
from tiltyard.web.problem import missing

router = APIRouter(prefix="/console", include_in_schema=False, dependencies=[Depends(inside)])
ROWS = 50
CURVE_STEPS = 2_000
MOST_CHARTS = 6
FIRST = {n: i for i, n in enumerate(("loss", "entropy_estimate", "grad_norm", "clip_fraction", "kl"))}
"""Metrics that are drawn before others."""


def _pages(request: Request) -> Pages:
    return request.app.state.pages


def _ledgers(request: Request) -> Recent:
    return request.app.state.ledgers


Rendering = Annotated[Pages, Depends(_pages)]
Text = Annotated[str | None, Query(max_length=2_000)]


def _listed(listing: str, rows: Keyset[Any], **kept_filters: str | None) -> dict[str, Any]:
    """What the list templates need: rows, filters and the link to the next page."""
    following = None if rows.next_key is None else encode(listing, rows.next_key)
    return {"rows": rows.items, "following": following, "filters": kept_filters}


@router.get("")
async def overview(pages: Rendering, ports: Using, cursor: Text = None) -> Response:
    rows = await ports.work.run(
        run_views.runs, ports.tenant, after=decode("console-runs", cursor), limit=ROWS
    )
    fleet = await ports.work.run(rollout_views.fleet)
    tasksets = await ports.work.run(task_views.tasksets, ports.tenant, after=None, limit=ROWS)
    values = {"fleet": fleet, "tasksets": tasksets.items}
    return pages.render("overview.html", _listed("console-runs", rows) | values)


@router.get("/runs/{reference:path}")
async def run(request: Request, run_id: RunId, pages: Rendering, ports: Using) -> Response:
    view = await ports.work.run(run_views.run, ports.tenant, run_id)
    steps = await ports.work.run(run_views.steps, run_id, after=None, limit=CURVE_STEPS)
    policies = await ports.work.run(run_views.policies, run_id, after=None, limit=6)
    points = await ports.work.run(run_views.curve, run_id) if view.kind == "train" else ()
    rollouts = rollout_views.RolloutFilter(run_id=run_id)
    newest = await ports.work.run(rollout_views.rollouts, ports.tenant, rollouts, after=None, limit=12)
    return pages.render(
        "run.html",
        {
            "run": view,
            "stats": await ports.work.run(run_views.stats, run_id),
            "reward": _reward_chart(points),
            "newest": points[-1] if points else None,
            "charts": _step_charts(steps.items),
            "evaluation": await _evaluation(ports, view),
            "ledger": await _ledgers(request).check(ports.work, ports.objects, run_id),
            "policies": policies.items,
            "rollouts": newest.items,
            "living": view.state in ("PENDING", "RUNNING"),
        },
    )


def _reward_chart(points: tuple[run_views.CurvePoint, ...]) -> Chart | None:
    return chart(
        [
            Point(
                x=p.version,
                y=p.mean,
                low=p.low,
                high=p.high,
                label=f"version {p.version}: {p.mean:.3f} over {p.valid} valid rollouts",
            )
            for p in points
        ],
        floor=0.0,
        ceiling=1.0,
    )


def _step_charts(steps: tuple[StepView, ...]) -> list[tuple[str, Chart, float]]:
    """One small chart for each metric of the committed steps, with its last value."""
    done = [s for s in steps if s.state == "COMMITTED"]
    names = sorted({name for s in done for name in s.metrics}, key=lambda n: (FIRST.get(n, len(FIRST)), n))
    drawn: list[tuple[str, Chart, float]] = []
    for name in names:
        points = [
            Point(x=s.step, y=s.metrics[name], label=f"step {s.step}: {s.metrics[name]:.4g}")
            for s in done
            if name in s.metrics
        ]
        made = chart(points, size=SMALL)
        if made is not None and len(points) > 1:
            drawn.append((name, made, points[-1].y))
    return drawn[:MOST_CHARTS]


async def _evaluation(ports: Ports, view: RunView) -> Any:
    if not isinstance(view.config, EvaluationRun):
        return None
    row = await ports.work.run(runs.get, view.id)
    scores = await ports.work.run(rollout_views.scores, view.id)
    rollouts = await ports.work.run(rollout_views.count, view.id)
    policy = f"{row.policy_run_id}@{row.policy_version}"
    return await asyncio.to_thread(evaluation.view, view.id, policy, rollouts, scores)


@router.get("/tasks")
async def tasks(
    pages: Rendering,
    ports: Using,
    taskset: Text = None,
    state: TaskState | None = None,
    name: Text = None,
    cursor: Text = None,
) -> Response:
    chosen = task_views.TaskFilter(taskset=taskset or None, state=state, name=name or None)
    rows = await ports.work.run(
        task_views.tasks, ports.tenant, chosen, after=decode("console-tasks", cursor), limit=ROWS
    )
    tasksets = await ports.work.run(task_views.tasksets, ports.tenant, after=None, limit=200)
    listed = _listed("console-tasks", rows, taskset=taskset, state=state, name=name)
    return pages.render("tasks.html", listed | {"tasksets": tasksets.items})


@router.get("/tasks/{reference:path}")
async def task(reference: str, pages: Rendering, ports: Using) -> Response:
    found = await ports.work.run(task_views.task, ports.tenant, reference)
    if found is None:
        raise missing("task", reference)
    chosen = rollout_views.RolloutFilter(task=found.id)
    newest = await ports.work.run(rollout_views.rollouts, ports.tenant, chosen, after=None, limit=12)
    waiting = found.admission is not None and found.admission.state in ("QUEUED", "LEASED")
    return pages.render("task.html", {"task": found, "rollouts": newest.items, "living": waiting})


@router.get("/rollouts")
async def rollouts(
    pages: Rendering, ports: Using, run: Text = None, state: State | None = None, cursor: Text = None
) -> Response:
    run_id = await ports.work.run(runs.find, ports.tenant, run) if run else None
    chosen = rollout_views.RolloutFilter(run_id=run_id, state=state)
    rows = await ports.work.run(
        rollout_views.rollouts, ports.tenant, chosen, after=decode("console-rollouts", cursor), limit=ROWS
    )
    listed = _listed("console-rollouts", rows, run=run, state=state)
    return pages.render("rollouts.html", listed | {"states": [str(s) for s in State]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One span of the waterfall, in thousandths of the whole."""

    depth: int
    name: str
    service: str
    status: str
    left: float
    width: float
    milliseconds: float
    message: str


def bars(spans: tuple[dict[str, Any], ...]) -> list[Bar]:
    """The waterfall's rows, scaled to 1,000."""
    rows = waterfall(spans)
    whole = max((r.offset_ms + r.duration_ms for r in rows), default=0.0) or 1.0
    return [
        Bar(
            depth=r.depth,
            name=r.name,
            service=r.service,
            status=r.status,
            left=round(r.offset_ms / whole * 1_000, 1),
            width=max(round(r.duration_ms / whole * 1_000, 1), 2.0),
            milliseconds=r.duration_ms,
            message=r.message,
        )
        for r in rows
    ]


@router.get("/rollouts/{rollout_id}")
async def rollout(rollout_id: str, pages: Rendering, ports: Using) -> Response:
    rows = await kept(ports, rollout_id)
    records = await asyncio.to_thread(read_records, ports.objects, rows)
    task_view = await ports.work.run(task_views.task, ports.tenant, rows.rollout.task)
    run_view = await ports.work.run(run_views.run, ports.tenant, rows.rollout.run_id)
    ended = rows.rollout.outcome
    return pages.render(
        "rollout.html",
        {
            "rollout": rows.rollout,
            "run": run_view,
            "ruling": RULINGS[Outcome(ended)] if ended in set(Outcome) else None,
            "task": task_view,
            "attempts": [(a, turns_of(task_view.spec if task_view else None, a)) for a in records.attempts],
            "gradings": records.gradings,
            "missing": records.missing,
            "transitions": rows.transitions,
            "bars": bars(spans_of(records)),
        },
    )


@router.get("/fleet")
async def fleet(pages: Rendering, ports: Using) -> Response:
    return pages.render("fleet.html", {"runners": await ports.work.run(rollout_views.fleet, everyone=True)})
