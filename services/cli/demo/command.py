"""`tiltyard demo`.

Guarantees: exits 0 only if everything that the demo claims holds; Ctrl-C leaves no process behind.
Does not: keep the stack running; `tiltyard up --state DIR` shows the same state again."""

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import click

from services.cli.demo.footprint import footprint, memory_mb, processes_of
from services.cli.demo.recipe import DEFAULT_STEPS, Recipe
from services.cli.output import screen


@click.command()
@click.option("--seed", default=0, show_default=True, help="Seed of tasks, policy and sampling.")
@click.option(
    "--steps", default=DEFAULT_STEPS, show_default=True, type=click.IntRange(1), help="Training steps."
)
@click.option("--state", type=click.Path(path_type=Path), help="State directory; a new one by default.")
@click.option("--port", default=8080, show_default=True, help="Loopback port of the API and the console.")
@click.option("--broker", default="", help="amqp://… to send hints and jobs by RabbitMQ instead of Postgres.")
@click.option("--objects", default="", help="s3://bucket/prefix?endpoint=… to keep artifacts in S3.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def demo(
    seed: int, steps: int, state: Path | None, port: int, broker: str, objects: str, as_json: bool
) -> None:
    """The whole loop on this machine: submit, admit, warm up, improve, measure.

    Submits HumanEval and a few hundred generated tasks over HTTP, admits them in sandboxes, makes a small
    policy and improves it with rewards from hidden tests. With fewer than the default steps, learning is
    reported and everything else is required.

    \b
      tiltyard demo
      tiltyard demo --steps 5 --json > result.json
      tiltyard demo --broker amqp://guest:guest@127.0.0.1// --objects
      's3://demo?endpoint=http://127.0.0.1:8333'
    """
    from services.cli.demo.picture import draw
    from services.cli.demo.progress import Display
    from services.cli.demo.result import Artifacts, Measured, document, failures, show
    from services.cli.demo.story import RunFailed, Story
    from services.cli.stack import Options, PortInUse, running
    from services.cli.state import StateError
    from services.cli.supervisor import ChildFailed
    from tiltyard.client import Client, ClientError

    console = screen(stderr=True)
    directory = (state or Path(tempfile.mkdtemp(prefix="tiltyard-demo-"))).absolute()
    started, before, display = monotonic(), footprint(directory), Display(console=console)
    options = Options(state=directory, port=port, broker=broker, objects=objects)
    try:
        with (
            display.live(),
            _peak_memory(directory) as peak,
            running(options, say=display.say) as stack,
            Client(stack.url, stack.token) as client,
        ):
            story = Story(client=client, display=display, recipe=Recipe(), seed=seed, steps=steps)
            told = story.tell()
            stack.supervisor.check()
            artifacts = Artifacts(
                state=directory,
                objects=stack.objects_url,
                plot=directory / "reward.png",
                console=f"tiltyard up --state {directory}",
            )
    except (StateError, PortInUse, ChildFailed, RunFailed, ClientError) as error:
        console.print(f"[red]demo failed:[/] {error}", highlight=False)
        if state is None:
            console.print(f"what it left: {directory}", highlight=False)
        sys.exit(1)
    draw(artifacts.plot, told.steps, told.before, told.after, title=f"Dr.GRPO, seed {seed}")
    measured = Measured(
        seconds=monotonic() - started, peak_rss_mb=max(peak), leaks=footprint(directory).beyond(before)
    )
    found = failures(told, measured, steps=steps)
    show(console, told, measured, artifacts, found)
    if as_json:
        click.echo(json.dumps(document(told, measured, artifacts, found), indent=2))
    sys.exit(1 if found else 0)


@contextmanager
def _peak_memory(state: Path) -> Iterator[list[float]]:
    """Samples of the stack's memory in MiB, one every two seconds while the block runs."""
    samples, done = [0.0], threading.Event()

    def sample() -> None:
        while not done.wait(2.0):
            samples.append(memory_mb(processes_of(state)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
