"""The recorder: finished spans as plain data, taken once, in bounded memory."""

import json
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tiltyard.telemetry.propagation import context_from, link_to
from tiltyard.telemetry.recorder import SpanRecorder

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def recorder() -> SpanRecorder:
    return SpanRecorder(traces=3, spans=4)


@pytest.fixture
def tracer(recorder: SpanRecorder) -> Iterator[trace.Tracer]:
    provider = TracerProvider(
        resource=Resource({"service.name": "runner", "service.instance.id": "r1"}), shutdown_on_exit=False
    )
    provider.add_span_processor(recorder)
    yield provider.get_tracer("test")
    provider.shutdown()


def trace_of(span: trace.Span) -> str:
    return trace.format_trace_id(span.get_span_context().trace_id)


def test_a_finished_span_is_taken_once(recorder: SpanRecorder, tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("episode", attributes={"rollout_id": "7"}) as episode:
        with tracer.start_as_current_span("exec"):
            pass
        assert [span["name"] for span in recorder.take_spans(trace_of(episode))] == ["exec"]
    (taken,) = recorder.take_spans(trace_of(episode))
    assert taken["name"] == "episode"
    assert (taken["service"], taken["instance"], taken["kind"]) == ("runner", "r1", "INTERNAL")
    assert taken["parent_id"] is None
    assert taken["end_ns"] >= taken["start_ns"] > 0
    assert recorder.take_spans(trace_of(episode)) == []


def test_a_record_is_json_with_everything_in_it(recorder: SpanRecorder, tracer: trace.Tracer) -> None:
    def call() -> None:
        links = link_to(REMOTE)
        context = context_from(REMOTE)
        sizes = {"sizes": (1, 2)}
        with tracer.start_as_current_span("call", context, links=links, attributes=sizes) as span:
            span.add_event("asked", {"turn": 1})
            raise ValueError("no such tool")

    with pytest.raises(ValueError, match="no such tool"):
        call()
    (record,) = recorder.take_spans("0af7651916cd43dd8448eb211c80319c")
    assert json.loads(json.dumps(record)) == record
    assert record["parent_id"] == "b7ad6b7169203331"
    assert record["attributes"] == {"sizes": [1, 2]}
    assert (record["status"], record["message"]) == ("ERROR", "ValueError: no such tool")
    assert [event["name"] for event in record["events"]] == ["asked", "exception"]
    assert record["links"] == [
        {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331", "attributes": {}}
    ]


def test_the_trace_touched_longest_ago_gives_way(recorder: SpanRecorder, tracer: trace.Tracer) -> None:
    spans = []
    for number in range(5):
        with tracer.start_as_current_span(str(number)) as span:
            spans.append(span)
    kept = [len(recorder.take_spans(trace_of(span))) for span in spans]
    assert kept == [0, 0, 1, 1, 1]
    assert recorder.lost == 2


def test_a_trace_without_end_is_bounded(recorder: SpanRecorder, tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("root") as root:
        for number in range(10):
            tracer.start_span(str(number)).end()
    assert len(recorder.take_spans(trace_of(root))) == 4
    assert recorder.lost == 7
