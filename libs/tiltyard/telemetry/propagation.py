"""Carrying a trace through rows, messages and HTTP headers, as a W3C `traceparent`.

Guarantees: the OpenTelemetry API alone; without an SDK everything is empty and nothing fails. A malformed
traceparent counts as none.
Does not: carry baggage or `tracestate`.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/."""

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

FIELD = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def inject() -> str:
    """The current span's traceparent; empty when there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get(FIELD, "")


def context_from(traceparent: str | None) -> Context:
    """A context whose current span is the remote one; an empty one, so a new trace, when there is none."""
    return _PROPAGATOR.extract({FIELD: traceparent} if traceparent else {}, context=Context())


def link_to(*traceparents: str | None) -> list[trace.Link]:
    """Links to remote spans, for `links=` of a new span; those that are no traceparents are left out."""
    contexts = (_span_context(one) for one in traceparents)
    return [trace.Link(context) for context in contexts if context.is_valid]


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace, as 32 hex digits."""
    return _hex(_span_context(traceparent))


def current_trace_id() -> str | None:
    """The current span's trace, as 32 hex digits."""
    return _hex(trace.get_current_span().get_span_context())


def _span_context(traceparent: str | None) -> trace.SpanContext:
    return trace.get_current_span(context_from(traceparent)).get_span_context()


def _hex(context: trace.SpanContext) -> str | None:
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
