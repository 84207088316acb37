"""POSTs that may be repeated.

Guarantees: with an Idempotency-Key, the work and the kept answer commit together; a repetition gets the first
answer, word for word, marked `Idempotency-Replayed: true`.
Does not: keep answers of refused requests; a repetition of those is looked at anew."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Request
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse, Response

from services.registry.ports import Ports
from tiltyard.contracts.document import Document
from tiltyard.store import idempotency

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Makes a repetition of this request get the first answer.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a handler did: the answer, and what to announce once it is committed."""

    status: int
    body: Document
    announce: Callable[[], None]


async def once(ports: Ports, request: Request, key: str | None, work: Callable[[Session], Done]) -> Response:
    """Do `work` in one transaction unless `key` has an answer already; announce after the commit."""
    asked = f"{request.method} {request.url.path}\n".encode() + await request.body()
    request_hash = hashlib.sha256(asked).hexdigest()
    done = await ports.work.run(_attempt, ports.tenant, key, request_hash, work)
    if isinstance(done, idempotency.Answer):
        return JSONResponse(done.body, done.status, {"Idempotency-Replayed": "true"})
    done.announce()
    return Response(done.body.model_dump_json(), done.status, media_type="application/json")


def _attempt(
    session: Session, tenant: str, key: str | None, request_hash: str, work: Callable[[Session], Done]
) -> Done | idempotency.Answer:
    if key is None:
        return work(session)
    before = idempotency.begin(session, tenant, key, request_hash)
    if before is not None:
        return before
    done = work(session)
    body = json.loads(done.body.model_dump_json())
    idempotency.finish(session, tenant, key, idempotency.Answer(status=done.status, body=body))
    return done
