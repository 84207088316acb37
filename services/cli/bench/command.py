"""`tiltyard bench loop` and `tiltyard bench dispatch`.

Guarantees: both transports and the peer are measured in one run, one after another; it ends within its time,
and a part that fails is told with the kind of its failure beside the figures of the others; SIGTERM ends it
with what was measured, and leaves no process behind.
Does not: judge the figures."""

import json
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from services.cli.bench.sheet import Sheet
from services.cli.output import screen

BROKER = click.option(
    "--broker", default="", help="amqp://… to measure; by default one is started where installed."
)
OBJECTS = click.option(
    "--objects", default="", help="file:///… or s3://… for records; by default a folder beside the database."
)
PART_SECONDS = click.option(
    "--part-seconds", default=120.0, show_default=True, help="Longest that one part may take."
)
SECONDS = click.option("--seconds", default=600.0, show_default=True, help="Longest that all may take.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")


class Stopped(BaseException):
    """SIGTERM or SIGINT came."""


@click.group()
def bench() -> None:
    """Measure the platform on this machine; ratios within one run are what counts."""


@bench.command()
@click.option(
    "--rollouts", default=4_096, show_default=True, type=click.IntRange(256), help="On each transport."
)
@BROKER
@OBJECTS
@PART_SECONDS
@SECONDS
@JSON
def loop(rollouts: int, broker: str, objects: str, part_seconds: float, seconds: float, as_json: bool) -> int:
    """Scripted policy, trivial tasks, all six services: rollouts a second through every state.

    \b
      tiltyard bench loop
      tiltyard bench loop --rollouts 1024 --json
    """
    from services.cli.bench.loop import Loop

    def measure(sheet: Sheet, directory: Path) -> None:
        def on(transport: str, url: str) -> None:
            here = Loop(state=directory / transport, broker=url, objects=objects, rollouts=rollouts)
            here.measure(sheet, transport)
            if url:
                _peer(sheet, url, rollouts)

        on_each_transport(on, sheet, directory, broker)

    return _measured(measure, part_seconds, seconds, as_json)


@bench.command()
@click.option(
    "--rollouts",
    default=3_072,
    show_default=True,
    type=click.IntRange(256),
    help="On each transport, without sandboxes.",
)
@click.option(
    "--sandboxed",
    default=1_536,
    show_default=True,
    type=click.IntRange(256),
    help="The same, with sandboxes.",
)
@click.option(
    "--queued",
    default=10_000,
    show_default=True,
    type=click.IntRange(64),
    help="Rollouts that wait while grants are timed.",
)
@click.option(
    "--in-flight", default=10_000, show_default=True, type=click.IntRange(64), help="Held in flight at once."
)
@click.option(
    "--history",
    default=10_000_000,
    show_default=True,
    type=click.IntRange(10_000),
    help="Ended rollouts beside which a grant is timed, as far as disk and time allow.",
)
@BROKER
@OBJECTS
@PART_SECONDS
@SECONDS
@JSON
def dispatch(
    rollouts: int,
    sandboxed: int,
    queued: int,
    in_flight: int,
    history: int,
    broker: str,
    objects: str,
    part_seconds: float,
    seconds: float,
    as_json: bool,
) -> int:
    """Rates, the latency and the cost of a grant, and a full fleet, on both transports.

    \b
      tiltyard bench dispatch --json
      tiltyard bench dispatch --rollouts 1024 --sandboxed 512 --in-flight 2000 --history 200000
    """
    from services.cli.bench import history as ended
    from services.cli.bench.dispatch import Dispatch

    def measure(sheet: Sheet, directory: Path) -> None:
        def on(transport: str, url: str) -> None:
            here = Dispatch(
                name=transport,
                state=directory / transport,
                broker=url,
                objects=objects,
                rollouts=rollouts,
                sandboxed=sandboxed,
                queued=queued,
                in_flight=in_flight,
            )
            here.measure(sheet)
            if url:
                _peer(sheet, url, rollouts)

        _open_more_files()
        on_each_transport(on, sheet, directory, broker)
        ended.measure(directory / "history", (10_000, history), sheet)

    return _measured(measure, part_seconds, seconds, as_json)


def _measured(
    measure: Callable[[Sheet, Path], None], part_seconds: float, seconds: float, as_json: bool
) -> int:
    """Measure into a sheet and tell it; the exit code."""
    console = screen(stderr=True)
    sheet = Sheet(part_seconds=part_seconds, seconds=seconds, say=partial(console.print, markup=False))
    stopped = False
    with stopping():
        try:
            with tempfile.TemporaryDirectory(prefix="tiltyard-bench-", ignore_cleanup_errors=True) as scratch:
                measure(sheet, Path(scratch))
        except Stopped:
            stopped = True
    _tell(sheet, console, as_json)
    return 143 if stopped else 1 if sheet.failures else 0


@contextmanager
def stopping() -> Iterator[None]:
    """The first SIGTERM or SIGINT raises `Stopped` here; those after it change nothing."""

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def on_each_transport(act: Callable[[str, str], None], sheet: Sheet, directory: Path, broker: str) -> None:
    """Call with name and broker URL of each transport, in order; a broker lives while it is measured."""
    from tiltyard.testing.servers import rabbitmq_installed, start_rabbitmq

    act("postgres", "")
    if broker:
        act("rabbitmq", broker)
    elif rabbitmq_installed():
        with sheet.part("rabbitmq", seconds=sheet.seconds):
            sheet.left()
            with start_rabbitmq(directory / "broker") as own:
                act("rabbitmq", own.url)
    else:
        sheet.say("no RabbitMQ here (Debian: apt-get install rabbitmq-server): Postgres alone")


def _peer(sheet: Sheet, broker: str, count: int) -> None:
    from services.cli.bench.noop import measure_noops

    with sheet.part(f"peer: {count} plain Celery no-ops on the same broker"):
        sheet.left()
        noops = measure_noops(broker, count)
        sheet.put("peer", {"celery_publish_per_s": noops.publish_per_s})
        sheet.put("peer", {"celery_drain_per_s": noops.drain_per_s})


def _open_more_files() -> None:
    """Each rollout in flight is a connection to the engine; the services inherit our limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell(sheet: Sheet, console: Console, as_json: bool) -> None:
    for name, figure in _flat(sheet.figures):
        console.print(f"{name}: {figure}", highlight=False)
    for failure in sheet.failures:
        console.print(f"{failure.part}: {failure.kind}: {failure.reason}", markup=False)
    if as_json:
        failures = [asdict(failure) for failure in sheet.failures]
        click.echo(json.dumps({**sheet.figures, "seconds": sheet.took, "failures": failures}, indent=2))


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and shown values."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", f"{value:.4g}" if isinstance(value, float) else str(value)
