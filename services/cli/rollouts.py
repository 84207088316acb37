"""`tiltyard rollout …` and `tiltyard fleet …`.

Guarantees: `rollout trace` needs no trace store; it reads the spans kept beside the attempt, and names the
step that failed.
Does not: follow a rollout that is under way; its spans are kept when its attempt ends."""

from itertools import islice
from typing import TYPE_CHECKING

import click

from services.cli.connection import reaching
from services.cli.output import Output, reporting

if TYPE_CHECKING:
    from rich.text import Text

    from tiltyard.client import Client
    from tiltyard.contracts.http import RolloutDetail
    from tiltyard.contracts.records import GradingRecord, Span

LANE = 40
"""Characters of a waterfall's time axis."""


@click.group()
def rollout() -> None:
    """Look into single rollouts and their traces."""


@rollout.command("list")
@click.option("--run", help="Run, by name or id.")
@click.option("--state", help="State, such as FAILED.")
@click.option("--task", help="Task, by name or version.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1), help="Rows to show.")
@reporting
@reaching
def list_rollouts(
    out: Output, client: "Client", run: str | None, state: str | None, task: str | None, limit: int
) -> None:
    """List rollouts, newest first.

    \b
      tiltyard rollout list --run demo-0-rl --state FAILED
    """
    chosen = client.rollouts(run=run, state=state.upper() if state else None, task=task)
    found = list(islice(chosen, limit))
    rows = [(r.id, r.task_name, r.state, r.reward, r.outcome, r.policy_version, r.fence) for r in found]
    columns = ["rollout", "task", "state", "reward#", "ended as", "policy#", "fence#"]
    out.result({"rollouts": found}, lambda: out.table(columns, rows))


@rollout.command()
@click.argument("rollout_id", metavar="ID")
@reporting
@reaching
def show(out: Output, client: "Client", rollout_id: str) -> None:
    """Show a rollout: its answer, its gradings, every move it made.

    \b
      tiltyard rollout show 019ad5d2-…
      tiltyard dlq show 019ad5d2-…
    """
    detail = client.rollout(rollout_id)
    out.result(detail, lambda: _moves(out, detail))
    if out.as_json:
        return
    from rich.text import Text

    for lost in detail.missing:
        out.say(Text(f"record missing: {lost}", style="red"))
    for attempt in detail.attempts:
        out.say(f"\n[bold]attempt {attempt.fence}[/]: {attempt.outcome}", Text(attempt.reason))
        out.say(Text(attempt.answer if attempt.answer is not None else "(no answer)"))
    for grading in detail.gradings:
        out.say(
            f"\n[bold]grading {grading.number}[/]: {grading.outcome}, reward {grading.reward}",
            Text(grading.reason),
        )
        for score in grading.scores:
            out.say(Text(f"  {score.component} = {score.value} ({score.outcome}) {score.detail}"))


def _moves(out: Output, detail: "RolloutDetail") -> object:
    rows = [
        (t.seq, t.start, t.end, t.fence, t.actor, f"{t.at:%H:%M:%S.%f}"[:-3], t.reason)
        for t in detail.transitions
    ]
    return out.table(["#", "from", "to", "fence#", "by", "at", "reason"], rows)


@rollout.command()
@click.argument("rollout_id", metavar="ID")
@reporting
@reaching
def trace(out: Output, client: "Client", rollout_id: str) -> None:
    """Print the waterfall of a rollout, from its grant to its grading, and what failed: a step of the
    platform, or a component of the verifier that the answer did not pass.

    \b
      tiltyard rollout trace 019ad5d2-…
    """
    view = client.trace(rollout_id)
    failed = failing_step(view.spans) or failing_component(client.rollout(rollout_id).gradings)
    document = {"rollout_id": rollout_id, "spans": list(view.spans), "failing_step": failed}
    out.result(document, lambda: _waterfall(view.spans))
    if out.as_json:
        return
    from rich.text import Text

    if not view.spans:
        out.say("no span is kept: its attempt has not ended, or its record is missing (rollout show)")
    elif failed is not None:
        out.say(Text(f"failed at {failed['name']} ({failed['service']}): {failed['message']}", style="red"))
    else:
        out.say("no step failed")


def failing_component(gradings: "tuple[GradingRecord, ...]") -> dict[str, str] | None:
    """The first component of the last grading that was not full, with what its tests said; None when all
    were."""
    for score in gradings[-1].scores if gradings else ():
        if score.value is not None and score.value < 1.0:
            return {"name": score.component, "service": "evaluator", "message": score.detail or score.outcome}
    return None


def failing_step(spans: "tuple[Span, ...]") -> dict[str, str] | None:
    """The innermost span that ended in error, the first of those; None when none did."""
    broken = [s for s in spans if s.get("status") == "ERROR"]
    parents = {str(s.get("parent_id")) for s in broken}
    innermost = [s for s in broken if str(s.get("span_id")) not in parents]
    if not innermost:
        return None
    first = min(innermost, key=_started)
    return {key: str(first.get(key, "")) for key in ("name", "service", "message", "span_id")}


def _started(span: "Span") -> int:
    start = span.get("start_ns")
    return start if isinstance(start, int) else 0


def _waterfall(spans: "tuple[Span, ...]") -> "Text":
    from rich.text import Text

    from tiltyard.telemetry.waterfall import waterfall

    rows = waterfall(spans)
    whole = max((r.offset_ms + r.duration_ms for r in rows), default=0.0) or 1.0
    drawn = Text()
    for row in rows:
        left = min(LANE - 1, int(row.offset_ms / whole * LANE))
        width = max(1, min(LANE - left, round(row.duration_ms / whole * LANE)))
        style = "red" if row.status == "ERROR" else "cyan"
        host = row.span.get("attributes", {}).get("server.address", "")
        drawn.append(f"{'  ' * row.depth}{row.name} {host}"[:38].ljust(39)).append(
            f"{row.service:<11}", style="dim"
        )
        drawn.append(" " * left).append("█" * width, style=style).append(" " * (LANE - left - width))
        drawn.append(f"{row.duration_ms:>10.1f} ms\n")
    return drawn
