"""The waterfall: every span once, below its parent."""

import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tiltyard.telemetry.waterfall import waterfall


def span(
    name: str, parent: str | None = None, *, start: int = 0, end: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "span_id": name,
        "parent_id": parent,
        "start_ns": start * 1_000_000,
        "end_ns": end * 1_000_000,
        **more,
    }


def lines(spans: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row.depth, row.name) for row in waterfall(spans)]


def test_nothing_is_no_rows() -> None:
    assert waterfall([]) == []


def test_children_stand_below_their_parents_by_start() -> None:
    spans = [
        span("grade", "episode", start=30, end=40, service="evaluator"),
        span("exec", "episode", start=20, end=25, status="ERROR", message="oom"),
        span("chat", "episode", start=5, end=20),
        span("generate", "chat", start=6, end=19),
        span("episode", start=4, end=50),
    ]
    assert lines(spans) == [(0, "episode"), (1, "chat"), (2, "generate"), (1, "exec"), (1, "grade")]
    exec_row = waterfall(spans)[3]
    assert (exec_row.offset_ms, exec_row.duration_ms) == (16.0, 5.0)
    assert (exec_row.status, exec_row.message) == ("ERROR", "oom")
    assert waterfall(spans)[4].service == "evaluator"


def test_a_span_whose_parent_is_missing_begins_a_tree() -> None:
    assert lines([span("b", "lost", start=2), span("a", start=1)]) == [(0, "a"), (0, "b")]


def test_a_span_that_comes_twice_counts_once() -> None:
    assert lines([span("a"), span("a"), span("b", "a"), span("b", "a")]) == [(0, "a"), (1, "b")]


def test_a_deep_chain_is_no_trouble() -> None:
    chain = [span(str(number), str(number - 1), start=number) for number in range(5_000)]
    assert waterfall(chain)[-1].depth == 4_999


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.none() | st.integers(0, 12), st.integers(0, 5)),
        unique_by=lambda each: each[0],
    )
)
def test_every_span_appears_exactly_once_whatever_its_parent(
    each: list[tuple[int, int | None, int]],
) -> None:
    spans = [
        span(str(name), None if parent is None else str(parent), start=start) for name, parent, start in each
    ]
    rows = waterfall(spans)
    assert sorted(row.name for row in rows) == sorted(one["name"] for one in spans)


def test_what_services_use_loads_no_sdk() -> None:
    code = (
        "import sys; from tiltyard.telemetry import events, propagation, span, waterfall; "
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'prometheus')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
