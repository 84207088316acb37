"""`tiltyard up`, `down` and `status`.

Guarantees: `up` returns when everything is ready, or says exactly why it is not; `down` returns when no
process of the stack is left.
Does not: hold the stack; a process in the background does (`services.cli.resident`)."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from services.cli import settings as own
from services.cli.output import Output, reporting
from services.cli.status import Status, is_supervisor, read_status

STOP_SECONDS = 90.0
STATE_OPTION = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="State directory: database, artifacts, logs, token.",
)


@click.command()
@STATE_OPTION
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Loopback port of the API and the console; 0 takes a free one.",
)
@click.option("--broker", default="", metavar="amqp://…", help="RabbitMQ for hints and jobs, not Postgres.")
@click.option("--objects", default="", metavar="s3://…", help="S3 for artifacts, not a directory.")
@click.option(
    "--engine",
    type=click.Choice(["transformers", "scripted"]),
    default="transformers",
    show_default=True,
    help="What generates tokens.",
)
@click.option("--slots", default=256, show_default=True, help="Rollouts aboard the runner at once.")
@click.option("--sandboxes", default=8, show_default=True, help="Sandboxes of the evaluator at once.")
@click.option(
    "--lend-port", type=click.IntRange(1, 65_535), help="Port on which the runner lends sandboxes over HTTP."
)
@click.option(
    "--network-allow", multiple=True, metavar="HOST:PORT", help="A host that tasks and borrowers may ask for."
)
@click.option(
    "--network-private", multiple=True, metavar="RANGE", help="Private addresses that such hosts may lead to."
)
@click.option("--otlp", default="", metavar="URL", help="OpenTelemetry collector, http://…:4318.")
@reporting
def up(
    out: Output,
    state: Path | None,
    port: int,
    broker: str,
    objects: str,
    engine: str,
    slots: int,
    sandboxes: int,
    lend_port: int | None,
    network_allow: tuple[str, ...],
    network_private: tuple[str, ...],
    otlp: str,
) -> None:
    """Start the whole platform on this machine, and keep it running.

    Embedded Postgres and the six services, each its own process, restarted when it dies. The API listens on
    the loopback alone and asks for the token in STATE/token.

    \b
      tiltyard up
      tiltyard up --state ~/lab --port 0
      tiltyard up --broker amqp://guest:guest@127.0.0.1//
      tiltyard up --lend-port 8082        sandboxes for your own harness, at /v1/sandboxes
      tiltyard up --network-allow 'pypi.example.org:443'      what tasks may ask for; nothing, unless told
    """
    folder = own.state_dir(state, own.read())
    options = {
        "port": port or _free_port(),
        "broker": broker,
        "objects": objects,
        "engine": engine,
        "slots": slots,
        "sandboxes": sandboxes,
        "lend_port": lend_port,
        "network_allow": ",".join(network_allow),
        "network_private": ",".join(network_private),
        "otlp_endpoint": otlp,
    }
    _refuse_running(folder)
    _start(out, folder, options)
    running = read_status(folder)
    if running is None:
        raise click.ClickException(f"the stack ended right after its start; see {folder}/logs")
    _show(out, folder, running)


def _free_port() -> int:
    from services.cli.stack import free_port

    return free_port()


def _refuse_running(folder: Path) -> None:
    running = read_status(folder)
    if running is not None:
        raise click.ClickException(
            f"a stack runs on {folder} already, at {running.url} (process {running.supervisor}); `tiltyard"
            f" status --state {folder}` shows it, `tiltyard down --state {folder}` stops it"
        )


def _start(out: Output, folder: Path, options: dict[str, object]) -> None:
    argv = [sys.executable, "-m", "services.cli.resident", str(folder), json.dumps(options)]
    environment = own.inherited() | {"TILTYARD_STATE_DIR": str(folder)}
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, env=environment
    ) as resident:
        try:
            with out.console.status("starting") as spinner:
                for event in _events(resident):
                    spinner.update(event.get("say", "ready"))
                    if "error" in event:
                        raise click.ClickException(event["error"])
                    if "ready" in event:
                        return
        except KeyboardInterrupt:
            resident.send_signal(signal.SIGTERM)
            resident.wait(STOP_SECONDS)
            raise
        finally:
            _let_go(resident)
        raise click.ClickException(f"the stack did not start; see {folder}/logs")


def _events(resident: "subprocess.Popen[bytes]") -> Iterator[dict[str, str]]:
    assert resident.stdout is not None
    for line in resident.stdout:
        yield json.loads(line)


def _let_go(resident: "subprocess.Popen[bytes]") -> None:
    """Leave a resident that holds its stack to itself: it is not ours to wait for."""
    if resident.poll() is None:
        resident.returncode = 0


@click.command()
@STATE_OPTION
@reporting
def down(out: Output, state: Path | None) -> None:
    """Stop the stack that `tiltyard up` started; what it has stored stays.

    \b
      tiltyard down
      tiltyard down --state ~/lab
    """
    folder = own.state_dir(state, own.read())
    running = read_status(folder)
    if running is None:
        out.result({"stopped": False, "state": str(folder)}, lambda: f"no stack runs on {folder}")
        return
    os.kill(running.supervisor, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while living := _living(folder, running):
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"processes {living} still run after {STOP_SECONDS:.0f} s; see {folder}/logs"
            )
        time.sleep(0.1)
    out.result({"stopped": True, "state": str(folder)}, lambda: f"stopped; its state stays in {folder}")


def _living(folder: Path, seen: Status) -> list[int]:
    """Which of the processes that a status named are still there."""
    supervisor = [seen.supervisor] if is_supervisor(seen.supervisor, folder) else []
    pids = [row.pid for row in seen.services.values() if row.pid is not None]
    return supervisor + [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@click.command()
@STATE_OPTION
@reporting
def status(out: Output, state: Path | None) -> None:
    """Show what runs, and the link to the console. Exit code 1 when nothing does.

    \b
      tiltyard status
      tiltyard status --json | jq -r .console
    """
    folder = own.state_dir(state, own.read())
    running = read_status(folder)
    if running is None:
        raise click.ClickException(f"no stack runs on {folder}; start one: tiltyard up --state {folder}")
    _show(out, folder, running)


def _show(out: Output, folder: Path, running: Status) -> None:
    token = (folder / "token").read_text().strip()
    console = f"{running.url}/console/login?token={token}"
    services = {name: {"pid": row.pid, "restarts": row.restarts} for name, row in running.services.items()}
    document = {
        "state": str(folder),
        "status": running.state,
        "url": running.url,
        "console": console,
        "token_file": str(folder / "token"),
        "supervisor": running.supervisor,
        "services": services,
    }
    out.result(document)
    if not out.as_json:
        rows = [
            (name, "running" if row.pid else "down", row.pid, row.restarts)
            for name, row in running.services.items()
        ]
        out.say(out.table(["service", "state", "pid#", "restarts#"], rows))
        out.say(f"API      {running.url}  (token in {folder / 'token'})")
        out.say(f"console  {console}")
        out.say(f"logs     {folder / 'logs'}")
