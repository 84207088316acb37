"""`tiltyard run …`.

Guarantees: `--watch` ends with the run, and its exit code tells whether the run COMPLETED.
Does not: keep a run alive; interrupting `--watch` leaves it running."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from services.cli.connection import reaching
from services.cli.output import Output, reporting

if TYPE_CHECKING:
    from tiltyard.client import Client
    from tiltyard.contracts.http import EvaluationView, LedgerView, RunStats, RunView


@click.group()
def run() -> None:
    """Start, watch, reconcile and cancel runs.

    A run is one training or evaluation job over a taskset, described by a TOML file; docs/first-run.md
    explains one line by line.
    """


@run.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a key of the file; may be repeated."
)
@click.option("--watch", is_flag=True, help="Follow the run until it ends; exit 1 unless it COMPLETED.")
@reporting
@reaching
def start(out: Output, client: "Client", file: Path, sets: tuple[str, ...], watch: bool) -> None:
    """Start the run that FILE.toml describes.

    \b
      tiltyard run start docs/examples/run-train.toml --watch
      tiltyard run start run.toml --set name=try-2 --set optimizer.learning_rate=1e-4
    """
    from services.cli import config

    view = client.start_run(config.load(file, sets))
    if not watch:
        out.result(view, lambda: f"{view.name} is {view.state}; follow it: tiltyard run show {view.name}")
        return
    ended = _watch(out, client, view)
    _show(out, client, ended)
    if ended.state != "COMPLETED":
        click.get_current_context().exit(1)


def _watch(out: Output, client: "Client", view: "RunView") -> "RunView":
    with out.console.status(f"{view.name}: {view.state}") as spinner:

        def told(seen: "RunView") -> None:
            spinner.update(_line(seen, client.stats(seen.id)))

        return client.wait_run(view.id, progress=told)


def _line(view: "RunView", stats: "RunStats") -> str:
    parts = [f"{view.name}: {view.state}"]
    if view.kind != "evaluation":
        parts.append(f"step {view.step}")
    if view.kind != "sft":
        parts += [f"reward {_number(stats.mean_reward)}", f"valid {_share(stats.valid_share)}"]
        parts.append(f"{stats.rollouts_per_second or 0:.1f} rollouts/s")
    return " · ".join(parts)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


@run.command("list")
@click.option("--state", type=click.Choice(["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]))
@click.option("--kind", type=click.Choice(["sft", "train", "evaluation"]))
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Rows to show.")
@reporting
@reaching
def list_runs(out: Output, client: "Client", state: str | None, kind: str | None, limit: int) -> None:
    """List runs, newest first.

    \b
      tiltyard run list --state RUNNING
    """
    found = list(islice(client.runs(state=state, kind=kind), limit))
    rows = [(r.name, r.kind, r.state, r.step, r.policy_version, r.id) for r in found]
    out.result({"runs": found}, lambda: out.table(["run", "kind", "state", "steps#", "policy#", "id"], rows))


@run.command()
@click.argument("reference", metavar="RUN")
@reporting
@reaching
def show(out: Output, client: "Client", reference: str) -> None:
    """Show what a run, by name or id, has come to.

    \b
      tiltyard run show demo-0-rl
    """
    _show(out, client, client.run(reference))


def _show(out: Output, client: "Client", view: "RunView") -> None:
    stats = client.stats(view.id)
    evaluation = client.evaluation(view.id) if view.kind == "evaluation" else None
    policies = list(islice(client.policies(view.id), 20))
    document = {"run": view, "stats": stats, "evaluation": evaluation, "policies": policies}
    out.result(document, lambda: out.table(["", ""], _facts(view, stats, evaluation)))
    if not out.as_json and policies:
        rows = [(f"{view.name}@{p.version}", p.state, p.step) for p in policies]
        out.say("")
        out.say(out.table(["policy", "state", "step#"], rows))


def _facts(
    view: "RunView", stats: "RunStats", evaluation: "EvaluationView | None"
) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [("run", view.name), ("id", view.id), ("kind", view.kind)]
    facts += [("state", view.state), ("reason", view.reason or None), ("policy version", view.policy_version)]
    if view.kind == "train":
        facts += [("steps", view.step), ("groups filtered", _share(stats.filter_rate))]
    if view.kind != "sft":
        facts += [("mean reward", _number(stats.mean_reward)), ("valid rollouts", _share(stats.valid_share))]
        facts += [("rollouts", ", ".join(f"{n} {s}" for s, n in stats.rollouts.items()) or None)]
        facts += [("platform failures", ", ".join(f"{n} {k}" for k, n in stats.failures.items()) or "none")]
    if evaluation is not None and evaluation.mean is not None:
        interval = f"{_number(evaluation.low)} … {_number(evaluation.high)}"
        facts.append(
            ("evaluation", f"{evaluation.mean:.3f} (95 %: {interval}) over {evaluation.tasks} tasks")
        )
    return facts


@run.command()
@click.argument("reference", metavar="RUN")
@reporting
@reaching
def ledger(out: Output, client: "Client", reference: str) -> None:
    """Reconcile the run's records; exit 1 when they disagree, naming the rows.

    \b
      tiltyard run ledger demo-0-rl
    """
    view = client.ledger(reference)
    out.result(view, lambda: _ledger(out, view))
    if not view.balanced:
        for odd in view.discrepancies:
            out.say(f"[red]{odd.rule}[/] · {odd.row}:", odd.detail)
        click.get_current_context().exit(1)


def _ledger(out: Output, view: "LedgerView") -> object:
    rows = [("groups planned", view.planned_groups), ("rollouts created", view.created)]
    rows += [(f"  {state}", n) for state, n in view.by_state.items()]
    rows += [
        ("steps committed", view.trained_steps),
        ("ledger", "balanced" if view.balanced else "disagrees"),
    ]
    return out.table(["", ""], rows)


@run.command()
@click.argument("reference", metavar="RUN")
@click.argument("to", metavar="PRIORITY", type=click.Choice(["high", "normal", "low"]))
@reporting
@reaching
def priority(out: Output, client: "Client", reference: str, to: Literal["high", "normal", "low"]) -> None:
    """Serve a run in another class from now on: high, normal or low.

    \b
      tiltyard run priority demo-0-rl high
    """
    view = client.prioritise_run(reference, to)
    out.result(view, lambda: f"{view.name} is {view.config.priority}")


@run.command()
@click.argument("reference", metavar="RUN")
@reporting
@reaching
def cancel(out: Output, client: "Client", reference: str) -> None:
    """Cancel a run and everything that it has in flight.

    \b
      tiltyard run cancel demo-0-rl
    """
    view = client.cancel_run(reference)
    out.result(view, lambda: f"{view.name} is {view.state}")
