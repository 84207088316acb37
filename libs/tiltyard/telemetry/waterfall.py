"""Spans of several processes as one waterfall.

Guarantees: every span appears once, children below their parents in order of their start; a span whose
parent is missing begins a tree of its own, and a cycle is broken.
Does not: correct clocks: processes on machines with different clocks are shown as they wrote."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a waterfall."""

    depth: int
    offset_ms: float
    """Milliseconds after the start of the earliest span."""
    duration_ms: float
    name: str
    service: str
    status: str
    message: str
    span: Mapping[str, Any]
    """The whole span."""


def waterfall(spans: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows from top to bottom; spans are `SpanRecord`s, and one that comes twice counts once."""
    by_id = {span["span_id"]: span for span in spans}
    if not by_id:
        return []
    children: dict[str | None, list[Mapping[str, Any]]] = defaultdict(list)
    for span in by_id.values():
        parent = span.get("parent_id")
        children[parent if parent in by_id else None].append(span)
    start = min(span["start_ns"] for span in by_id.values())
    rows: list[Row] = []
    left = dict(by_id)
    while left:  # the roots first; then each cycle, from its earliest span
        roots = [span for span in children[None] if span["span_id"] in left]
        stack = [(0, span) for span in _last_first(roots or [min(left.values(), key=_order)])]
        while stack:
            depth, span = stack.pop()
            if left.pop(span["span_id"], None) is not None:
                rows.append(_row(span, depth, start))
                stack += [(depth + 1, child) for child in _last_first(children[span["span_id"]])]
    return rows


def _last_first(spans: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """In reverse order of their start, as a stack wants them."""
    return sorted(spans, key=_order, reverse=True)


def _row(span: Mapping[str, Any], depth: int, start: int) -> Row:
    return Row(
        depth=depth,
        offset_ms=(span["start_ns"] - start) / NS_PER_MS,
        duration_ms=(span["end_ns"] - span["start_ns"]) / NS_PER_MS,
        name=span["name"],
        service=span.get("service", ""),
        status=span.get("status", "UNSET"),
        message=span.get("message", ""),
        span=span,
    )


def _order(span: Mapping[str, Any]) -> tuple[int, str]:
    return span["start_ns"], span["span_id"]
