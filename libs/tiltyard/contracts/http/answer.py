"""What every route may answer: a page of a list, a problem, the service's health."""

from typing import Generic, Literal, TypeVar

from pydantic import Field

from tiltyard.contracts.document import Document, Fault

T = TypeVar("T")


class Page(Document, Generic[T]):
    """One page of a list; `next_cursor` is None on the last."""

    items: tuple[T, ...]
    next_cursor: str | None = None


class Problem(Document):
    """An error (RFC 9457, `application/problem+json`)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str = ""
    faults: tuple[Fault, ...] = ()
    """For an invalid document: each fault with its path."""


class Health(Document):
    status: Literal["ok", "unready"]
    checks: dict[str, str] = Field(default_factory=dict)
