"""`tiltyard bench loop` and `tiltyard bench dispatch`.

Guarantees: both transports and the peer are measured in one run, one after another.
Does not: judge the figures."""

import json
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

BROKER = click.option(
    "--broker", default="", help="amqp://… to measure; by default one is started where installed."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
Figures = dict[str, Any]


@click.group()
def bench() -> None:
    """Measure the platform on this machine; ratios within one run are what counts."""


@bench.command()
@click.option(
    "--rollouts", default=4_096, show_default=True, type=click.IntRange(256), help="On each transport."
)
@BROKER
@JSON
def loop(rollouts: int, broker: str, as_json: bool) -> None:
    """Scripted policy, trivial tasks, all six services: rollouts a second through every state.

    \b
      tiltyard bench loop
      tiltyard bench loop --rollouts 1024 --json
    """
    from services.cli.bench.loop import Loop

    console, figures = Console(stderr=True), Figures()
    with _scratch() as directory:
        for transport, url in _transports(console, directory, broker):
            console.print(f"{rollouts} rollouts over {transport} …")
            figures[transport] = Loop(state=directory / transport, broker=url, rollouts=rollouts).measure()
            if url:
                figures["peer"] = _peer(console, url, rollouts)
    console.print(_loop_table(figures))
    _tell(figures, as_json)


@bench.command()
@click.option(
    "--rollouts",
    default=4_096,
    show_default=True,
    type=click.IntRange(256),
    help="On each transport, without and again with sandboxes.",
)
@click.option(
    "--in-flight", default=10_000, show_default=True, type=click.IntRange(64), help="Held in flight at once."
)
@click.option(
    "--history",
    default=10_000_000,
    show_default=True,
    type=click.IntRange(10_000),
    help="Ended rollouts beside which a grant is timed; ten million take minutes and some GB to make.",
)
@BROKER
@JSON
def dispatch(rollouts: int, in_flight: int, history: int, broker: str, as_json: bool) -> None:
    """Rates, the latency and the cost of a grant, and a full fleet, on both transports.

    \b
      tiltyard bench dispatch --json
      tiltyard bench dispatch --rollouts 1024 --in-flight 2000 --history 200000
    """
    from services.cli.bench.dispatch import Dispatch

    console, figures = Console(stderr=True), Figures()
    _open_more_files()
    with _scratch() as directory:
        for transport, url in _transports(console, directory, broker):
            measured = Dispatch(
                state=directory / transport, broker=url, rollouts=rollouts, in_flight=in_flight
            )
            figures[transport] = measured.measure(lambda what, on=transport: console.print(f"{on}: {what} …"))
            if url:
                figures["peer"] = _peer(console, url, rollouts)
        figures |= _grant_cost(console, directory / "history", history)
    console.print(_dispatch_table(figures))
    _tell(figures, as_json)


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tiltyard-bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _transports(console: Console, directory: Path, broker: str) -> Iterator[tuple[str, str]]:
    """Name and broker URL of each transport, in order; a broker lives while it is measured."""
    from tiltyard.testing.servers import rabbitmq_installed, start_rabbitmq

    yield "postgres", ""
    if broker:
        yield "rabbitmq", broker
    elif rabbitmq_installed():
        with start_rabbitmq(directory / "broker") as server:
            yield "rabbitmq", server.url
    else:
        console.print("no RabbitMQ here (Debian: apt-get install rabbitmq-server): Postgres alone")


def _peer(console: Console, broker: str, count: int) -> Figures:
    from services.cli.bench.noop import measure_noops

    console.print(f"{count} plain Celery no-ops on the same broker …")
    noops = measure_noops(broker, count)
    return {
        "celery_publish_per_s": round(noops.publish_per_s, 1),
        "celery_drain_per_s": round(noops.drain_per_s, 1),
    }


def _grant_cost(console: Console, state: Path, largest: int) -> Figures:
    """The ratio, named after the sizes that it is meant for, and the sizes that it was measured at."""
    from services.cli.bench.history import grant_costs

    few, many = grant_costs(state, (10_000, largest), lambda what: console.print(f"{what} …"))
    return {"grant_cost_ratio_10k_10m": many.ms / few.ms, "grant_cost": [asdict(few), asdict(many)]}


def _open_more_files() -> None:
    """Each rollout in flight is a connection to the engine; the services inherit our limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_table(figures: Figures) -> Table:
    table = Table("transport", "rollouts/s", "grant → scored p50", "p99", "ledger")
    for transport in ("postgres", "rabbitmq"):
        if row := figures.get(transport):
            latency = row["grant_to_scored_ms"]
            table.add_row(
                transport,
                f"{row['rollouts_per_s']:.0f}",
                f"{latency['p50']:.0f} ms",
                f"{latency['p99']:.0f} ms",
                _balance(row["ledger_balanced"]),
            )
    return table


def _dispatch_table(figures: Figures) -> Table:
    table = Table(
        "transport", "rollouts/s", "with sandboxes", "grant p50", "p99", "in flight", "MiB", "ledgers"
    )
    for transport in ("postgres", "rabbitmq"):
        if row := figures.get(transport):
            table.add_row(
                transport,
                f"{row['rollouts_per_s']:.0f}",
                f"{row['rollouts_per_s_with_sandbox']:.0f}",
                *(f"{row['grant_ms'][p]:.0f} ms" for p in ("p50", "p99")),
                str(row["in_flight"]),
                str(row["rss_mb"]),
                _balance(row["ledgers_balanced"]),
            )
    few, many = figures["grant_cost"]
    table.caption = (
        f"a grant beside {many['rows']} ended rollouts costs {many['ms'] / few['ms']:.2f} times"
        f" one beside {few['rows']}"
    )
    return table


def _balance(balanced: bool) -> str:
    return "balance" if balanced else "DO NOT BALANCE"


def _tell(figures: Figures, as_json: bool) -> None:
    if peer := figures.get("peer"):
        Console(stderr=True).print(
            f"plain Celery: {peer['celery_publish_per_s']:.0f} published,"
            f" {peer['celery_drain_per_s']:.0f} drained a second"
        )
    if as_json:
        click.echo(json.dumps(figures, indent=2))
