"""The root span of an attempt, from the attempt's row.

Guarantees: the very trace and span id that the dispatcher gave the attempt, so that its other spans hang
below; an attempt that left nothing else, since its runner died, still shows how it ended.
Does not: need the dispatcher's own export."""

from datetime import datetime

from tiltyard.contracts.records import Span
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.store.views.rollouts import Grant


def span_of(grant: Grant) -> Span:
    """From the grant to its claim; to the attempt's end when nobody recorded more."""
    _, trace_id, span_id, _ = (grant.traceparent.split("-") + [""] * 4)[:4]
    recorded = grant.artifact is not None
    end = grant.claimed_at if recorded else grant.ended_at
    failed = grant.outcome is not None and not ruling(Outcome(grant.outcome)).valid
    return {
        "name": "grant",
        "kind": "INTERNAL",
        "service": "dispatcher",
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": None,
        "start_ns": _nanoseconds(grant.granted_at),
        "end_ns": _nanoseconds(end or grant.granted_at),
        "attributes": {
            "tiltyard.attempt.fence": grant.fence,
            "tiltyard.runner.incarnation": grant.incarnation,
            "tiltyard.outcome": grant.outcome or "",
        },
        "status": "ERROR" if failed else "OK",
        "message": grant.reason if failed else "",
        "events": [],
        "links": [],
    }


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
