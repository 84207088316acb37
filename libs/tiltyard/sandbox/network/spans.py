"""Connections out of a box as spans, below whatever is being traced.

Guarantees: one span for each record, allowed or not, from its start to its end; attributes follow
OpenTelemetry's conventions where they have a name (`server.*`, `network.*`, `error.type`). One that failed is
an error; one that was refused is not: that is what the proxy is for.
Does not: export. Without a tracer of the process's nothing happens."""

from opentelemetry import context, trace

from .record import Connection, OnConnection, Verdict

NAME = "connect"
_SECOND = 1_000_000_000


def connection_spans(
    note: OnConnection, *, under: context.Context | None = None, **labels: str
) -> OnConnection:
    """Makes a span of each connection, a child of `under`, or of what is traced now, and tells `note` too.
    `labels` stand on it."""
    parent = context.get_current() if under is None else under
    tracer = trace.get_tracer("tiltyard.sandbox")

    def record(connection: Connection) -> None:
        began = int(connection.started * _SECOND)
        span = tracer.start_span(
            NAME,
            context=parent,
            kind=trace.SpanKind.CLIENT,
            attributes={**labels, **_attributes(connection)},
            start_time=began,
        )
        if connection.verdict is Verdict.failed:
            span.set_attribute("error.type", str(connection.reason))
            span.set_status(trace.StatusCode.ERROR, connection.detail)
        span.end(began + int(connection.seconds * _SECOND))
        note(connection)

    return record


def _attributes(connection: Connection) -> dict[str, str | int]:
    known = {"network.peer.address": connection.address} if connection.address else {}
    return {
        "server.address": connection.host,
        "server.port": connection.port,
        "network.transport": "tcp",
        "box": connection.box,
        "connection": connection.number,
        "verdict": str(connection.verdict),
        "reason": str(connection.reason),
        "detail": connection.detail,
        "bytes_up": connection.bytes_up,
        "bytes_down": connection.bytes_down,
        **known,
    }
