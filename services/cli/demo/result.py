"""What a demo has to hold, and how it is told.

Guarantees: the exit code follows from `Verdict.failures` alone, and the JSON document says everything that
the tables say.
Does not: measure anything itself."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from services.cli.demo.recipe import DEFAULT_STEPS
from services.cli.demo.story import HUMANEVAL, Told
from tiltyard.contracts.http import EvaluationView

MUST_RISE = 0.25
"""Held-out pass rate after RL, above the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured around the story."""

    seconds: float
    peak_rss_mb: float
    leaks: dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """Where everything lies."""

    state: Path
    objects: str
    plot: Path
    console: str


def failures(told: Told, measured: Measured, *, steps: int) -> list[str]:
    """Everything that does not hold; learning is required from the default number of steps on."""
    found: list[str] = []
    for name, view in told.tasksets.items():
        if view.active != view.tasks:
            found.append(f"taskset {name}: {view.active} of {view.tasks} tasks were admitted")
    for name, sums in told.admissions.items():
        if sums["oracle_failures"] or sums["noop_passes"]:
            found.append(
                f"taskset {name}: {sums['oracle_failures']} oracle failures,"
                f" {sums['noop_passes']} no-op passes"
            )
    for ledger in told.ledgers:
        if not ledger.balanced:
            found.append(
                f"the ledger of run {ledger.run_id} does not balance: {ledger.discrepancies[0].detail}"
            )
    if measured.leaks:
        found.append(f"left behind: {measured.leaks}")
    rise = (told.after.mean or 0.0) - (told.before.mean or 0.0)
    if steps >= DEFAULT_STEPS and rise < MUST_RISE:
        found.append(f"held-out pass rate rose by {rise:.3f}, less than {MUST_RISE}")
    return found


def document(told: Told, measured: Measured, artifacts: Artifacts, found: list[str]) -> dict[str, Any]:
    """The `--json` document."""
    humaneval = told.tasksets[HUMANEVAL]
    states = _states(told)
    return {
        "ok": not found,
        "failures": found,
        "humaneval": {
            "tasks": humaneval.tasks,
            "admitted": humaneval.active,
            **told.admissions[HUMANEVAL],
        },
        "tasksets": {
            name: {"tasks": view.tasks, "admitted": view.active, **told.admissions[name]}
            for name, view in told.tasksets.items()
        },
        "heldout": {
            "before": told.before.mean,
            "before_interval": [told.before.low, told.before.high],
            "after": told.after.mean,
            "after_interval": [told.after.low, told.after.high],
            "tasks": told.after.tasks,
            "rollouts": told.after.rollouts,
        },
        "training": {
            "steps": sum(s.state == "COMMITTED" for s in told.steps),
            "policy_version": told.runs[1].policy_version,
        },
        "ledger": {
            "created": sum(ledger.created for ledger in told.ledgers),
            "by_state": dict(sorted(states.items())),
            "balanced": all(ledger.balanced for ledger in told.ledgers),
        },
        "runs": {run.name: run.id for run in told.runs},
        "leaks": sum(map(len, measured.leaks.values())),
        "seconds": round(measured.seconds, 1),
        "peak_rss_mb": round(measured.peak_rss_mb),
        "artifacts": {k: str(v) for k, v in asdict(artifacts).items()},
    }


def _states(told: Told) -> Counter[str]:
    states: Counter[str] = Counter()
    for ledger in told.ledgers:
        states.update(ledger.by_state)
    return states


def show(console: Console, told: Told, measured: Measured, artifacts: Artifacts, found: list[str]) -> None:
    """The summary for people."""
    admission = Table(
        "taskset", "tasks", "admitted", "oracle passed", "oracle failed", "no-op passed", "no-op failed"
    )
    for name, view in told.tasksets.items():
        sums = told.admissions[name]
        counts = (sums[k] for k in ("oracle_passes", "oracle_failures", "noop_passes", "noop_failures"))
        admission.add_row(name, str(view.tasks), str(view.active), *map(str, counts))
    console.print(admission)
    console.print(
        f"held-out pass rate: {_interval(told.before)} before RL → {_interval(told.after)} after"
        f" ({told.after.tasks} tasks, 95 % intervals over tasks)",
        markup=True,
        highlight=False,
    )
    ledger = Table("rollouts", *sorted(_states(told)), "ledger")
    balanced = all(view.balanced for view in told.ledgers)
    ledger.add_row(
        str(sum(view.created for view in told.ledgers)),
        *(str(n) for _, n in sorted(_states(told).items())),
        "balances" if balanced else "DOES NOT BALANCE",
    )
    console.print(ledger)
    console.print(f"plot       {artifacts.plot}", highlight=False)
    console.print(f"artifacts  {artifacts.objects}", highlight=False)
    console.print(f"console    {artifacts.console}", highlight=False)
    console.print(f"{measured.seconds:.0f} s, {measured.peak_rss_mb:.0f} MiB at most", highlight=False)
    for line in found:
        console.print(f"[red]does not hold:[/] {line}", highlight=False)


def _interval(view: EvaluationView) -> str:
    if view.mean is None or view.low is None or view.high is None:
        return "unknown"
    return f"[bold]{view.mean:.3f}[/] ({view.low:.3f} to {view.high:.3f})"
