"""Opaque cursors.

Guarantees: a cursor goes on exactly where its page ended, and only in the list that gave it.
Does not: keep a snapshot; rows that came meanwhile are seen by a new listing."""

import base64
import binascii
import json
from typing import Annotated, TypeVar

from fastapi import Query

from tiltyard.contracts.document import Document
from tiltyard.contracts.http import Page
from tiltyard.store.views.page import Keyset
from tiltyard.web.problem import Refusal

D = TypeVar("D", bound=Document)
Limit = Annotated[int, Query(ge=1, le=500, description="Rows in one page.")]
Cursor = Annotated[
    str | None, Query(max_length=2_000, description="`next_cursor` of the page before; absent for the first.")
]


def encode(listing: str, key: str) -> str:
    """The cursor after `key` in a listing."""
    return base64.urlsafe_b64encode(json.dumps([listing, key]).encode()).decode().rstrip("=")


def decode(listing: str, cursor: str | None, *, numeric: bool = False) -> str | None:
    """The key that a cursor stands for; raises `Refusal` for one that this listing did not give."""
    if not cursor:
        return None
    try:
        of, key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, TypeError):
        of, key = None, None
    fits = isinstance(key, str) and (key.isascii() and key.isdigit() if numeric else key.isprintable())
    if of != listing or not fits:
        raise Refusal(422, "cursor is not one that this list gave; leave it out to begin anew")
    return key


def page(listing: str, rows: Keyset[D]) -> Page[D]:
    """The rows as a page of the API."""
    following = None if rows.next_key is None else encode(listing, rows.next_key)
    return Page[D](items=rows.items, next_cursor=following)
