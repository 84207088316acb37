"""Renders the console's pages.

Guarantees: autoescaping is on, an undefined name is an error, and each page carries the strict policy.
Does not: fetch anything."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
TONES = {
    "good": (
        "ACTIVE",
        "COMPLETED",
        "TRAINED",
        "EVALUATED",
        "READY",
        "SCORED",
        "DONE",
        "PUBLISHED",
        "COMMITTED",
    ),
    "busy": ("RUNNING", "PENDING", "GRANTED", "PRODUCED", "TRAINING", "QUEUED", "LEASED", "STARTED", "OPEN"),
    "bad": ("FAILED", "DEAD", "INVALID", "QUARANTINED", "EXPIRED"),
}
TONE_OF = {state: tone for tone, states in TONES.items() for state in states}


def tone(state: str) -> str:
    """Which colour a state has: good, busy, bad or calm."""
    return TONE_OF.get(state, "calm")


def ago(moment: datetime | None) -> str:
    """How long since, in one unit."""
    if moment is None:
        return "–"
    return f"{span((datetime.now(UTC) - moment) / timedelta(seconds=1))} ago"


def span(seconds: float) -> str:
    """A duration in one unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0) * 1_000:.0f} ms"


def number(value: float | None, digits: int = 2) -> str:
    """A number for people; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f} %"


def clock(moment: datetime | None) -> str:
    return "–" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def environment() -> Environment:
    """The templates with their filters."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(tone=tone, ago=ago, span=span, number=number, percent=percent, clock=clock)
    return made


class Pages:
    """Templates, rendered with the policy's headers."""

    def __init__(self) -> None:
        self._templates = environment()

    def render(self, name: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(name).render(values), status, HEADERS)
