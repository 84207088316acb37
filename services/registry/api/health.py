"""Routes that say whether the registry lives, can work, and what it counts.

Guarantees: `/readyz` asks the database and the object store each time, and answers within seconds.
Does not: ask for a token; nothing of any task is told."""

import asyncio
from collections.abc import Awaitable

from fastapi import APIRouter, Request
from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.registry.ports import Using
from tiltyard.contracts.http import Health

router = APIRouter(tags=["health"])
PATIENCE = 5.0
"""Seconds that a check may take."""
PROBE = "health/probe"


@router.get("/healthz")
async def healthz() -> Health:
    """The process lives."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health}})
async def readyz(ports: Using, response: Response) -> Health:
    """Database and object store answer; 503 with the failing check otherwise."""
    database, objects = await asyncio.gather(
        _checked(ports.work.run(_select_one)), _checked(asyncio.to_thread(ports.objects.exists, PROBE))
    )
    checks = {"database": database, "objects": objects}
    ready = all(state == "ok" for state in checks.values())
    response.status_code = 200 if ready else 503
    return Health(status="ok" if ready else "unready", checks=checks)


def _select_one(session: Session) -> None:
    session.execute(text("SELECT version_num FROM alembic_version")).scalar_one()


async def _checked(check: Awaitable[object]) -> str:
    try:
        async with asyncio.timeout(PATIENCE):
            await check
    except Exception as error:  # noqa: BLE001 - whatever keeps it from working makes it unready
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"[:300]
    return "ok"


@router.get("/metrics", response_class=Response, include_in_schema=False)
async def metrics(request: Request, ports: Using) -> Response:
    """Prometheus metrics."""
    gauges = request.app.state.gauges
    exposition = await gauges.exposition(ports)
    return Response(exposition, media_type=gauges.content_type)
