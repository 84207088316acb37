"""Sets up spans, logs and metrics of one process; called by a `__main__` alone.

Guarantees: spans are recorded whether or not an exporter is configured; an exporter that cannot reach its
collector never blocks the service.
Does not: sample, whatever a parent or the environment says: every attempt's trace is whole."""

import os
import socket
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tiltyard.telemetry.events import log_to
from tiltyard.telemetry.metrics import Metrics
from tiltyard.telemetry.recorder import SpanRecorder

EXPORT_SECONDS = 3
"""For one batch with all its retries; the end of a process waits for the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What a composition root hands to its app."""

    recorder: SpanRecorder
    metrics: Metrics
    provider: TracerProvider = field(repr=False)

    def shutdown(self) -> None:
        """Export what waits, for a few seconds at most."""
        self.provider.shutdown()


def setup(
    service: str,
    otlp_endpoint: str | None = None,
    *,
    instance: str | None = None,
    version: str = "",
    log_level: str = "INFO",
) -> Telemetry:
    """Install the process's tracer provider and JSON logs on stderr.

    `otlp_endpoint` is a collector's base URL, such as http://127.0.0.1:4318; without one nothing is exported.
    `instance` names this process among its siblings; by default host and pid."""
    log_to(None, service=service, level=log_level)
    resource = Resource.create(
        {
            "service.name": service,
            "service.namespace": "tiltyard",
            "service.instance.id": instance or f"{socket.gethostname()}:{os.getpid()}",
            "service.version": version,
        }
    )
    recorder = SpanRecorder()
    provider = TracerProvider(resource=resource, sampler=ALWAYS_ON)
    provider.add_span_processor(recorder)
    if otlp_endpoint:
        exporter = OTLPSpanExporter(f"{otlp_endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return Telemetry(recorder=recorder, metrics=Metrics(), provider=provider)
