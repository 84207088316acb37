"""A finished span as plain data, the shape kept beside an attempt.

Guarantees: JSON can hold it, and it reads like OTLP with readable names.
Does not: hold a resource; `service` and `instance` are what we need of one."""

from typing import TypedDict


class SpanEvent(TypedDict):
    """Something that happened within a span."""

    name: str
    time_ns: int
    attributes: dict[str, object]


class SpanLink(TypedDict):
    """Another span that this one belongs with, without being its child."""

    trace_id: str
    span_id: str
    attributes: dict[str, object]


class SpanRecord(TypedDict):
    """One finished span."""

    name: str
    kind: str
    """INTERNAL, SERVER, CLIENT, PRODUCER or CONSUMER."""
    service: str
    instance: str
    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None
    start_ns: int
    """Nanoseconds since 1970, by the wall clock of the process that wrote the span."""
    end_ns: int
    attributes: dict[str, object]
    status: str
    """UNSET, OK or ERROR."""
    message: str
    """What the error was; empty without one."""
    events: list[SpanEvent]
    links: list[SpanLink]
