"""What the registry's routes work with.

Guarantees: built once, by the composition root or a test.
Does not: hold a request's state."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from fastapi import Depends, Request

from tiltyard.objects import ObjectStore
from tiltyard.store.database import AsyncUnitOfWork

UPLOADS_AT_ONCE = 8


class Publisher(Protocol):
    """Hints after a commit; never blocks and never fails (`tiltyard.queue`)."""

    def announce(self, *topics: str) -> None: ...

    def enqueue(self, kind: str, ids: tuple[str, ...]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The database, the object store and the way to announce work, under one tenant."""

    work: AsyncUnitOfWork
    objects: ObjectStore
    publisher: Publisher
    tenant: str
    token: str
    max_artifact_bytes: int = 4_000_000_000
    uploads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(UPLOADS_AT_ONCE))


def _ports(request: Request) -> Ports:
    return request.app.state.ports


Using = Annotated[Ports, Depends(_ports)]
