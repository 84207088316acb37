"""A process with telemetry set up: what it exports to a collector, and what it does without one."""

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tiltyard.testing.servers.daemon import free_ports

PROGRAM = """
import sys, json
from opentelemetry import trace
from tiltyard.telemetry.setup import setup
from tiltyard.telemetry.propagation import current_trace_id
from tiltyard.telemetry.events import event_logger

telemetry = setup("runner", sys.argv[1] or None, instance="r1")
with trace.get_tracer("tiltyard.runner").start_as_current_span("episode"):
    event_logger("runner").info("runner.claimed", rollout_id="7")
    trace_id = current_trace_id()
json.dump(telemetry.recorder.take_spans(trace_id), sys.stdout)
telemetry.shutdown()
"""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector's trace endpoint, and what it was sent."""
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()
    thread.join()


def run(endpoint: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, endpoint]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def test_spans_reach_the_collector_and_the_recorder(
    collector: tuple[str, list[ExportTraceServiceRequest]],
) -> None:
    endpoint, received = collector
    done = run(endpoint)
    (record,) = json.loads(done.stdout)
    (request,) = received
    (resource_spans,) = request.resource_spans
    resource = {pair.key: pair.value.string_value for pair in resource_spans.resource.attributes}
    (span,) = resource_spans.scope_spans[0].spans
    assert (resource["service.name"], resource["service.instance.id"]) == ("runner", "r1")
    assert span.name == record["name"] == "episode"
    assert span.trace_id.hex() == record["trace_id"]
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["event"], line["trace_id"]) == ("runner.claimed", record["trace_id"])


def test_without_a_collector_spans_are_recorded_all_the_same() -> None:
    (record,) = json.loads(run("").stdout)
    assert (record["name"], record["service"], record["instance"]) == ("episode", "runner", "r1")


def test_a_dead_collector_ends_nothing() -> None:
    (port,) = free_ports(1)
    (record,) = json.loads(run(f"http://127.0.0.1:{port}").stdout)
    assert record["name"] == "episode"
