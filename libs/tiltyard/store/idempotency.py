"""Idempotency keys: a POST that is repeated gets the first answer.

Guarantees: of two requests with one key, one does the work; the key and what it did commit together.
Does not: forget keys by itself; `forget` does."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tiltyard.store.tables import IdempotencyKey

KEPT = timedelta(hours=24)
"""How long an answer is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request was answered with."""

    status: int
    body: dict[str, Any]


class OtherRequest(ValueError):
    """The key was used before, for a request with another content."""


def begin(session: Session, tenant_id: str, key: str, request_hash: str) -> Answer | None:
    """None when the caller is to do the work, and then to call `finish` in the same transaction; else the
    answer that was given before. Waits while another transaction holds the key. Raises `OtherRequest`."""
    mine = session.execute(
        insert(IdempotencyKey)
        .values(tenant_id=tenant_id, key=key, request_hash=request_hash, status=0, body={})
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.key)
    ).scalar_one_or_none()
    if mine is not None:
        return None
    row = session.execute(
        select(IdempotencyKey.request_hash, IdempotencyKey.status, IdempotencyKey.body).where(
            IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key
        )
    ).one()
    if row.request_hash != request_hash:
        raise OtherRequest(key)
    return Answer(status=row.status, body=row.body)


def finish(session: Session, tenant_id: str, key: str, answer: Answer) -> None:
    """Keep the answer of a request that `begin` let through."""
    session.execute(
        update(IdempotencyKey)
        .where(IdempotencyKey.tenant_id == tenant_id, IdempotencyKey.key == key)
        .values(status=answer.status, body=answer.body)
    )


def forget(session: Session, older_than: timedelta = KEPT) -> int:
    """Drop answers that are older; returns how many."""
    gone = session.execute(
        delete(IdempotencyKey)
        .where(IdempotencyKey.created_at < func.clock_timestamp() - older_than)
        .returning(IdempotencyKey.key)
    )
    return len(gone.all())
