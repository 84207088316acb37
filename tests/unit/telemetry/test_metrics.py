"""Metrics: a page that Prometheus can read."""

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tiltyard.telemetry.metrics import Metrics


def test_the_page_holds_what_was_counted() -> None:
    metrics = Metrics()
    metrics.counter("rollouts", "Rollouts that ended.", ["failure_kind"]).labels("none").inc(3)
    metrics.gauge("slots_free", "Free slots.").set(7)
    metrics.histogram("claim_seconds", "Grant to claim.").observe(0.02)
    page = metrics.exposition().decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["tiltyard_rollouts_total", "none"] == 3
    assert samples["tiltyard_slots_free",] == 7
    assert samples["tiltyard_claim_seconds_bucket", "0.01"] == 0
    assert samples["tiltyard_claim_seconds_bucket", "0.03"] == 1


def test_a_name_is_one_metric() -> None:
    metrics = Metrics()
    assert metrics.counter("jobs", "Jobs.") is metrics.counter("jobs", "Jobs.")
    with pytest.raises(ValueError, match="'jobs' exists as a Counter"):
        metrics.gauge("jobs", "Jobs.")
    with pytest.raises(ValueError, match="'jobs' exists"):
        metrics.counter("jobs", "Jobs.", ["kind"])


def test_two_processes_worth_of_metrics_are_strangers() -> None:
    one, two = Metrics(), Metrics()
    one.gauge("depth", "Depth.").set(1)
    assert b"tiltyard_depth" not in two.exposition()


def test_a_service_without_http_serves_the_page() -> None:
    metrics = Metrics()
    metrics.gauge("depth", "Depth.").set(4)
    server = metrics.serve(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        assert b"tiltyard_depth 4.0" in answer.read()
    server.close()
