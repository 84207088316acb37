"""One page of a keyset query.

Guarantees: `next_key` is None on the last page.
Does not: encode cursors; the API does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyset(Generic[T]):
    """Rows in order, and the key to go on after."""

    items: tuple[T, ...]
    next_key: str | None


def page_of(rows: Sequence[Any], limit: int, key: str, view: Callable[[Any], T]) -> Keyset[T]:
    """A page from `limit` + 1 rows that were asked for, whose column `key` orders them."""
    kept = rows[:limit]
    more = len(rows) > limit
    return Keyset(items=tuple(view(r) for r in kept), next_key=str(getattr(kept[-1], key)) if more else None)
