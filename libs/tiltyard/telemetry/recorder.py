"""Finished spans, kept by trace until whoever writes the artifact takes them.

Guarantees: bounded memory: at most `traces` traces of `spans` spans each; the trace that was touched longest
ago gives way first, and what is lost is counted.
Does not: export; the OTLP exporter beside it does."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

from opentelemetry import trace
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor

from tiltyard.telemetry.span import SpanEvent, SpanLink, SpanRecord

TRACES = 20_000
SPANS = 2_000


class SpanRecorder(SpanProcessor):
    """A span processor that a service takes finished spans from."""

    def __init__(self, *, traces: int = TRACES, spans: int = SPANS) -> None:
        self._most_traces, self._most_spans = traces, spans
        self._by_trace: OrderedDict[str, list[SpanRecord]] = OrderedDict()
        self._lock = Lock()
        self.lost = 0
        """Spans that the bounds cost."""

    def on_end(self, span: ReadableSpan) -> None:
        record = span_record(span)
        with self._lock:
            held = self._by_trace.setdefault(record["trace_id"], [])
            self._by_trace.move_to_end(record["trace_id"])
            if len(held) >= self._most_spans:
                self.lost += 1
                return
            held.append(record)
            while len(self._by_trace) > self._most_traces:
                _, evicted = self._by_trace.popitem(last=False)
                self.lost += len(evicted)

    def take_spans(self, trace_id: str) -> list[SpanRecord]:
        """This process's finished spans of a trace (32 hex digits), in order of their end; forgets them."""
        with self._lock:
            return self._by_trace.pop(trace_id, [])

    def shutdown(self) -> None:
        """Nothing to release."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def span_record(span: ReadableSpan) -> SpanRecord:
    """The plain form of a finished span."""
    context = span.get_span_context() or trace.INVALID_SPAN_CONTEXT
    resource = span.resource.attributes
    return SpanRecord(
        name=span.name,
        kind=span.kind.name,
        service=str(resource.get("service.name", "")),
        instance=str(resource.get("service.instance.id", "")),
        trace_id=trace.format_trace_id(context.trace_id),
        span_id=trace.format_span_id(context.span_id),
        parent_id=trace.format_span_id(span.parent.span_id) if span.parent else None,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=_plain(span.attributes),
        status=span.status.status_code.name,
        message=span.status.description or "",
        events=[_event(event) for event in span.events],
        links=[_link(link) for link in span.links],
    )


def _event(event: Event) -> SpanEvent:
    return SpanEvent(name=event.name, time_ns=event.timestamp, attributes=_plain(event.attributes))


def _link(link: trace.Link) -> SpanLink:
    return SpanLink(
        trace_id=trace.format_trace_id(link.context.trace_id),
        span_id=trace.format_span_id(link.context.span_id),
        attributes=_plain(link.attributes),
    )


def _plain(attributes: Mapping[str, object] | None) -> dict[str, object]:
    """Attributes as JSON has them: tuples become lists, bytes become hex."""
    return {name: _plain_value(value) for name, value in (attributes or {}).items()}


def _plain_value(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [_plain_value(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _plain_value(one) for name, one in value.items()}
    return value
