"""`tiltyard bench loop`.

Guarantees: both transports and the peer are measured in one run, one after another.
Does not: judge the figures."""

import json
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table


@click.group()
def bench() -> None:
    """Measure the platform on this machine; ratios within one run are what counts."""


@bench.command()
@click.option(
    "--rollouts", default=4_096, show_default=True, type=click.IntRange(256), help="On each transport."
)
@click.option("--broker", default="", help="amqp://… to measure; by default one is started where installed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def loop(rollouts: int, broker: str, as_json: bool) -> None:
    """Scripted policy, trivial tasks, all six services: rollouts a second through every state.

    \b
      tiltyard bench loop
      tiltyard bench loop --rollouts 1024 --json
    """
    from tiltyard.testing.servers import rabbitmq_installed, start_rabbitmq

    console, figures = Console(stderr=True), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        _measure(console, figures, "postgres", directory, "", rollouts)
        if broker:
            _with_broker(console, figures, directory, broker, rollouts)
        elif rabbitmq_installed():
            with start_rabbitmq(directory / "broker") as server:
                _with_broker(console, figures, directory, server.url, rollouts)
        else:
            console.print("no RabbitMQ here (Debian: apt-get install rabbitmq-server): Postgres alone")
    _show(console, figures)
    if as_json:
        click.echo(json.dumps(figures, indent=2))


def _with_broker(
    console: Console, figures: dict[str, Any], directory: Path, broker: str, rollouts: int
) -> None:
    from services.cli.bench.noop import noops_per_second

    _measure(console, figures, "rabbitmq", directory, broker, rollouts)
    console.print("plain Celery no-ops on the same broker …")
    figures["peer"] = {"celery_noop_per_s": round(noops_per_second(broker, rollouts), 1)}


def _measure(
    console: Console, figures: dict[str, Any], transport: str, directory: Path, broker: str, rollouts: int
) -> None:
    from services.cli.bench.loop import Loop

    console.print(f"{rollouts} rollouts over {transport} …")
    figures[transport] = Loop(state=directory / transport, broker=broker, rollouts=rollouts).measure()


def _show(console: Console, figures: dict[str, Any]) -> None:
    table = Table("transport", "rollouts/s", "grant → scored p50", "p99", "ledger")
    for transport in ("postgres", "rabbitmq"):
        if row := figures.get(transport):
            latency = row["grant_to_scored_ms"]
            table.add_row(
                transport,
                f"{row['rollouts_per_s']:.0f}",
                f"{latency['p50']:.0f} ms",
                f"{latency['p99']:.0f} ms",
                "balances" if row["ledger_balanced"] else "DOES NOT BALANCE",
            )
    console.print(table)
    if peer := figures.get("peer"):
        console.print(f"plain Celery: {peer['celery_noop_per_s']:.0f} no-ops/s")
