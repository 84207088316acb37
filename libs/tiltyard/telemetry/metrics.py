"""Prometheus metrics of one process.

Guarantees: a registry of its own; every metric begins with `tiltyard_`; asking twice for a name gives the
same metric, and asking with other labels is an error.
Does not: bound the values of labels; keep them few (`failure_kind`, never a reason or an id)."""

from collections.abc import Sequence
from threading import Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

Metric = TypeVar("Metric", Counter, Gauge, Histogram)

PREFIX = "tiltyard_"
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
"""Default buckets of a histogram of durations."""


class MetricsServer:
    """A page that is being served."""

    def __init__(self, server: WSGIServer, thread: Thread) -> None:
        self._server, self._thread = server, thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop serving; the end of the process does so too."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Metrics:
    """Metrics by name."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._made: dict[str, tuple[tuple[str, ...], Counter | Gauge | Histogram]] = {}

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """A number that grows; its name ends in `_total` on the page."""
        return self._one(Counter, name, help_text, labels)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down."""
        return self._one(Gauge, name, help_text, labels)

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        """A distribution; durations are in seconds."""
        return self._one(Histogram, name, help_text, labels, buckets=buckets)

    def collect_from(self, collector: Collector) -> None:
        """Add numbers that are read when the page is asked for, as from rows."""
        self.registry.register(collector)

    def exposition(self) -> bytes:
        """The page that Prometheus reads, in `content_type`."""
        return generate_latest(self.registry)

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serve the page over HTTP from a daemon thread, for a service without HTTP of its own."""
        return MetricsServer(*start_http_server(port, host, registry=self.registry))

    def _one(
        self, kind: type[Metric], name: str, help_text: str, labels: Sequence[str], **options: Any
    ) -> Metric:
        known = self._made.get(name)
        if known is None:
            known = tuple(labels), kind(PREFIX + name, help_text, labels, registry=self.registry, **options)
            self._made[name] = known
        had, metric = known
        if had != tuple(labels) or not isinstance(metric, kind):
            raise ValueError(f"metric {name!r} exists as a {type(metric).__name__} with labels {had}")
        return metric
