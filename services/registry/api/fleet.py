"""Routes of the fleet and its queue: who has what, who waits for what, and what people may change about it.

Guarantees: an order is a row that the dispatcher finds at its next turn.
Does not: reach a runner; its next heartbeat tells it."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy.orm import Session

from services.registry.ports import Ports, Using
from tiltyard.contracts.document import Document, parse
from tiltyard.contracts.http import (
    DrainOrder,
    ImageLimits,
    Page,
    PoolLimits,
    QueueView,
    RunnerView,
    TenantLimits,
)
from tiltyard.contracts.messages import DISPATCH
from tiltyard.store import fleet, limits
from tiltyard.store.views import queue
from tiltyard.store.views import rollouts as views
from tiltyard.web import body
from tiltyard.web.openapi import takes
from tiltyard.web.problem import Refusal

router = APIRouter(prefix="/v1", tags=["fleet"])
L = TypeVar("L", bound=Document)
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


@router.patch("/tenants/{tenant}/limits", openapi_extra=takes(TenantLimits))
async def limit_tenant(tenant: NamePath, request: Request, ports: Using) -> TenantLimits:
    """Change a tenant's weight and caps; what is left out stays as it is."""
    return await _change(limits.set_tenant, tenant, TenantLimits, "tenant limits", request, ports)


@router.patch("/pools/{pool}/limits", openapi_extra=takes(PoolLimits))
async def limit_pool(pool: NamePath, request: Request, ports: Using) -> PoolLimits:
    """Change the cap and the headroom of a pool; what is left out stays as it is."""
    return await _change(limits.set_pool, pool, PoolLimits, "pool limits", request, ports)


@router.patch("/images/{image}/limits", openapi_extra=takes(ImageLimits))
async def limit_image(image: NamePath, request: Request, ports: Using) -> ImageLimits:
    """Set the cap of an image, as tasks name it."""
    return await _change(limits.set_image, image, ImageLimits, "image limits", request, ports)


async def _change(
    change: Callable[[Session, str, L], L],
    name: str,
    model: type[L],
    what: str,
    request: Request,
    ports: Ports,
) -> L:
    given = await body.document(request, model, what=what)
    if not given.model_fields_set:
        raise Refusal(422, f"nothing is given to change; {what} are {', '.join(model.model_fields)}")
    now = await ports.work.run(change, name, given)
    ports.publisher.announce(DISPATCH)
    return now
