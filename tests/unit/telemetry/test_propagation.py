"""Traces through rows and headers: what goes in comes out, and rubbish is no trace."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tiltyard.telemetry.propagation import context_from, current_trace_id, inject, link_to, trace_id_of

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RUBBISH = [None, "", "rubbish", "00-00000000000000000000000000000000-b7ad6b7169203331-01", REMOTE[:-5]]


def test_outside_of_a_span_there_is_nothing_to_carry() -> None:
    assert inject() == ""
    assert current_trace_id() is None


def test_what_is_injected_is_extracted() -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("grant") as grant:
        carried = inject()
        assert current_trace_id() == trace_id_of(carried)
    with tracer.start_as_current_span("episode", context=context_from(carried)) as episode:
        assert episode.get_span_context().trace_id == grant.get_span_context().trace_id
        assert episode.get_span_context().span_id != grant.get_span_context().span_id


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_is_no_trace(rubbish: str | None) -> None:
    assert trace_id_of(rubbish) is None
    assert len(link_to(rubbish, REMOTE, rubbish)) == 1
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with (
        tracer.start_as_current_span("outer") as outer,
        tracer.start_as_current_span("inner", context=context_from(rubbish)) as inner,
    ):
        assert inner.get_span_context().trace_id != outer.get_span_context().trace_id


def test_links_name_the_remote_span() -> None:
    (link,) = link_to(REMOTE)
    assert trace.format_span_id(link.context.span_id) == "b7ad6b7169203331"
