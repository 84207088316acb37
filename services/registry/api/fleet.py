"""Routes of the fleet and its queue: who has what, who waits for what, and what people may change about it.

Guarantees: an order is a row that the dispatcher finds at its next turn.
Does not: reach a runner; its next heartbeat tells it."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session

from services.registry.ports import Using
from tiltyard.contracts.document import parse
from tiltyard.contracts.http import (
    DrainOrder,
    Page,
    PoolLimits,
    QueueView,
    RunnerView,
    TenantLimits,
)
from tiltyard.contracts.messages import DISPATCH
from tiltyard.store import fleet, pools, tenants
from tiltyard.store.views import queue
from tiltyard.store.views import rollouts as views
from tiltyard.web import body
from tiltyard.web.openapi import takes

router = APIRouter(prefix="/v1", tags=["fleet"])
NamePath = Annotated[str, Path(min_length=1, max_length=200)]


@router.get("/fleet")
async def list_fleet(
    ports: Using, ended: Annotated[bool, Query(description="Those that have ended too.")] = False
) -> Page[RunnerView]:
    """Runner incarnations with what they have aboard; at most 500."""
    return Page(items=await ports.work.run(views.fleet, everyone=ended))


@router.post("/fleet/{node}/drain", openapi_extra=takes(DrainOrder))
async def drain(node: NamePath, request: Request, ports: Using) -> Page[RunnerView]:
    """Grant nothing more to a node, or grant to it again; what it has aboard goes on."""
    order = parse(DrainOrder, await body.values(request, what="drain order"), what="drain order")

    def work(session: Session) -> Page[RunnerView]:
        fleet.drain(session, node, draining=order.draining)
        return Page(items=tuple(r for r in views.fleet(session) if r.node == node))

    drained = await ports.work.run(work)
    ports.publisher.announce(DISPATCH)
    return drained


@router.get("/queue")
async def show_queue(ports: Using) -> QueueView:
    """Backlog, shares and deficits, and why what waits is not granted."""
    return await ports.work.run(queue.queue, ports.tenant)


@router.put("/tenants/{tenant}/limits", openapi_extra=takes(TenantLimits))
async def limit_tenant(tenant: NamePath, request: Request, ports: Using) -> TenantLimits:
    """Set a tenant's weight and caps."""
    given = parse(TenantLimits, await body.values(request, what="tenant limits"), what="tenant limits")

    def work(session: Session) -> None:
        tenants.limit(
            session,
            tenant,
            weight=given.weight,
            max_running=given.max_running,
            max_queued=given.max_queued,
        )

    await ports.work.run(work)
    ports.publisher.announce(DISPATCH)
    return given


@router.put("/pools/{pool}/limits", openapi_extra=takes(PoolLimits))
async def limit_pool(pool: NamePath, request: Request, ports: Using) -> PoolLimits:
    """Set the cap of a pool."""
    given = parse(PoolLimits, await body.values(request, what="pool limits"), what="pool limits")
    await ports.work.run(pools.limit, pool, max_running=given.max_running)
    ports.publisher.announce(DISPATCH)
    return given
