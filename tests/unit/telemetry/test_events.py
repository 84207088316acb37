"""Events: one JSON object a line, with fields and trace ids."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider

from tiltyard.telemetry.events import event_logger, log_to
from tiltyard.telemetry.propagation import current_trace_id


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    log_to(stream, service="runner")
    yield stream
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def written(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_a_name_and_fields(stream: io.StringIO) -> None:
    event_logger("runner").info("runner.claimed", rollout_id="7", fence=2, path=stream)
    (line,) = written(stream)
    assert line["event"] == "runner.claimed"
    assert (line["level"], line["service"], line["rollout_id"], line["fence"]) == ("info", "runner", "7", 2)
    assert "StringIO" in str(line["path"])


def test_a_field_never_hides_what_the_line_is_about(stream: io.StringIO) -> None:
    event_logger("runner").warning("runner.lost", level="fake", time="never")
    (line,) = written(stream)
    assert line["level"] == "warning"
    assert line["time"] != "never"


def test_a_line_break_stays_within_the_line(stream: io.StringIO) -> None:
    event_logger("runner").info("two\nlines", text="a\nb")
    (line,) = written(stream)
    assert (line["event"], line["text"]) == ("two\nlines", "a\nb")


def test_an_event_within_a_span_carries_its_trace(stream: io.StringIO) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("episode"):
        event_logger("runner").info("inside")
        expected = current_trace_id()
    event_logger("runner").info("outside")
    inside, outside = written(stream)
    assert inside["trace_id"] == expected
    assert "trace_id" not in outside


def test_an_error_carries_its_traceback(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        event_logger("runner").error("runner.failed", exc_info=error)
    (line,) = written(stream)
    assert "RuntimeError: broken" in str(line["exception"])


def test_libraries_speak_the_same_format(stream: io.StringIO) -> None:
    logging.getLogger("some.library").warning("value is %d", 3)
    logging.getLogger("tiltyard.queue").debug("not shown")
    (line,) = written(stream)
    assert (line["event"], line["logger"]) == ("value is 3", "some.library")
