"""`tiltyard sandbox`: what this machine can isolate, and how fast."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from services.cli.boxes import accepting, made_by, source
from services.cli.door import door
from services.cli.images import images
from services.cli.output import Output, reporting
from services.cli.sandbox_health import health_command
from services.cli.sandbox_shell import shell_command
from tiltyard.sandbox import (
    Connection,
    DoctorReport,
    ExecResult,
    Health,
    Limits,
    NativeBackend,
    Network,
    SandboxBackend,
    SandboxError,
    WarmPool,
    doctor,
)
from tiltyard.sandbox.capability import Demand
from tiltyard.sandbox.docker import runtime as docker_runtime


@click.group(no_args_is_help=True)
def sandbox() -> None:
    """See what this machine can isolate.

    \b
    tiltyard sandbox doctor            what works here, and what to do about the rest
    tiltyard sandbox run -- python3 -c 'print(1)'
    tiltyard sandbox shell             a terminal in one
    tiltyard sandbox health            whether boxes can be had now, and how the machine is
    tiltyard sandbox check             every law and every attack, tried
    tiltyard sandbox bench             how fast
    tiltyard sandbox door              sandboxes for programs that are not root
    tiltyard sandbox images            what else than this machine's /usr they start from

    Native sandboxes share this machine's kernel: right for your own model's code on a machine that runs
    nothing else."""


sandbox.add_command(images)
sandbox.add_command(door)
sandbox.add_command(health_command)
sandbox.add_command(shell_command)


@sandbox.command("doctor")
@reporting
def doctor_command(out: Output) -> int:
    """Say what this machine can enforce, and how to cure what it cannot. Exit code 1: no sandbox here.

    \b
      tiltyard sandbox doctor
      tiltyard sandbox doctor --json | jq .usable
    """
    report = asyncio.run(doctor())
    out.result(_document(report), lambda: out.table(["check", "", "found"], _rows(report)))
    return 0 if report.usable else 1


def _document(report: DoctorReport) -> dict[str, Any]:
    return {"usable": report.usable, "checks": [asdict(check) for check in report.checks]}


def _rows(report: DoctorReport) -> list[list[object]]:
    marks = {Health.ok: "ok", Health.slow: "slow", Health.missing: "MISSING"}
    return [[check.name, marks[check.health], check.detail] for check in report.checks]


@sandbox.command("run", context_settings={"ignore_unknown_options": True})
@source
@accepting
@click.option("--memory-mb", default=512, show_default=True, help="MiB of memory, its files included.")
@click.option("--pids", default=64, show_default=True, help="Processes and threads.")
@click.option("--cpus", default=1.0, show_default=True, help="CPUs.")
@click.option("--cpu-seconds", default=10.0, show_default=True, help="CPU time.")
@click.option("--wall-seconds", type=float, help="Time; by default twice the CPU time and 5.")
@click.option(
    "--allow",
    multiple=True,
    metavar="HOST:PORT",
    help="Let it reach this host through a proxy, or *.DOMAIN:PORT; again for each. Without it: nobody.",
)
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@reporting
def run_command(
    out: Output,
    argv: tuple[str, ...],
    allow: tuple[str, ...],
    backend: str,
    runtime: str | None,
    image: str | None,
    accept: tuple[str, ...],
    memory_mb: int,
    pids: int,
    cpus: float,
    cpu_seconds: float,
    wall_seconds: float | None,
) -> int:
    """Run one command in a fresh sandbox; stdin is passed on.

    Exit code: the command's own, or 1 when it was ended by a signal or a limit.

    \b
      tiltyard sandbox run -- python3 -c 'print(1 + 1)'
      echo hello | tiltyard sandbox run --memory-mb 32 -- cat
      tiltyard sandbox run --backend docker --image debian:12 -- id
      tiltyard sandbox run --allow example.org:443 -- curl -s https://example.org
    """
    try:
        backend_, image = made_by(backend, runtime, image, accept)
        limits = Limits(memory_mb=memory_mb, pids=pids, cpus=cpus, disk_mb=min(64, memory_mb // 2))
        stdin = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
        network = Network(allow=allow) if allow else None
        pool = WarmPool(backend=backend_, image=image, size=1, limits=limits)
        options = {"stdin": stdin, "cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds}
        result, connections = asyncio.run(_run(pool, network, argv, options))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    out.result({**_plain(result), "connections": [asdict(each) for each in connections]})
    if not out.as_json:
        click.echo(result.stdout, nl=False)
        click.echo(result.stderr, nl=False, err=True)
        for each in connections:
            place = f"{each.host or 'nowhere'}:{each.port}"
            click.echo(f"connection to {place} {each.verdict}: {each.reason}: {each.detail}", err=True)
        click.echo(f"{result.outcome}: {result.detail or f'{result.wall_seconds:.3f} s'}", err=True)
    return 1 if result.exit_code is None else result.exit_code


async def _run(
    pool: WarmPool, network: Network | None, argv: tuple[str, ...], options: dict[str, Any]
) -> tuple[ExecResult, list[Connection]]:
    """Its end, and what it reached or tried to."""
    connections: list[Connection] = []
    async with pool, pool.acquire(network=network, on_connection=connections.append) as box:
        result = await box.exec(argv, **options)
    return result, connections


def _plain(result: ExecResult) -> dict[str, Any]:
    streams = {name: getattr(result, name).decode(errors="replace") for name in ("stdout", "stderr")}
    return {**asdict(result), **streams}


@sandbox.command("check")
@source
@reporting
def check_command(out: Output, backend: str, runtime: str | None, image: str | None) -> int:
    """Try every law and every attack on this machine. Exit code 1: one does not hold, or succeeds.

    What a runtime is known not to keep or not to withstand is shown with the reason, and is no failure; an
    attack that cannot be made here is shown with the reason too; beside a native attack stands what stops it,
    without which it succeeds. Takes about half a minute.

    \b
      tiltyard sandbox check
      tiltyard sandbox check --backend docker --runtime runsc --image python:3.12
    """
    excuse = partial(docker_runtime.excuse, runtime or "runc") if backend == "docker" else _no_excuse
    try:
        accept = () if backend == "native" else tuple(Demand)
        backend_, image = made_by(backend, runtime, image, accept)
        findings, attacks = asyncio.run(_try_all(backend_, image, excuse))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    laws = [
        {**asdict(finding), "excuse": "" if finding.holds else excuse(finding.law, finding.detail)}
        for finding in findings
    ]
    holds = all(law["holds"] or law["excuse"] for law in laws)
    holds = holds and all(attack["verdict"] != "broken" for attack in attacks)
    document = {"backend": backend, "runtime": runtime, "image": image, "holds": holds, "laws": laws}
    rows = [_law_row(law) for law in laws] + [_attack_row(attack) for attack in attacks]
    out.result(document | {"attacks": attacks}, lambda: out.table(["law or attack", "", "found"], rows))
    return 0 if holds else 1


def _no_excuse(name: str, seen: str) -> str:
    del name, seen
    return ""


def _law_row(law: dict[str, Any]) -> list[object]:
    if law["holds"]:
        return [law["law"], "holds", ""]
    if law["excuse"]:
        return [law["law"], "cannot", f"{law['excuse']} ({law['detail']})"]
    return [law["law"], "BROKEN", law["detail"]]


def _attack_row(attack: dict[str, Any]) -> list[object]:
    words = {
        "not_attackable": "cannot be attacked here",
        "cannot_defend": "cannot defend",
        "broken": "BROKEN",
    }
    verdict = attack["verdict"]
    found = attack["detail"] or attack["stopped_by"]
    return [f"{attack['row']}. {attack['attack']}", words.get(verdict, verdict), found]


async def _try_all(
    backend: SandboxBackend, image: str, excuse: Callable[[str, str], str]
) -> tuple[list[Any], list[dict[str, Any]]]:
    from tiltyard.sandbox.abuse import ATTACKS, assail
    from tiltyard.sandbox.conformance import LIMITS, conform

    async with WarmPool(backend=backend, image=image, size=3, limits=LIMITS) as pool:
        laws = [finding async for finding in conform(pool)]
        attacks = [asdict(finding) async for finding in assail(pool, ATTACKS, excuse)]
    if not isinstance(backend, NativeBackend):  # what stops it there, this does not know
        attacks = [{**attack, "stopped_by": ""} for attack in attacks]
    return laws, attacks


@sandbox.command("bench")
@click.option(
    "--live", type=int, multiple=True, default=(100,), show_default=True, help="Idle boxes at once."
)
@click.option("--seconds", default=3.0, show_default=True, help="How long each rate is measured.")
@click.option("--peers", is_flag=True, help="bwrap, runc, docker and a plain process too, in the same run.")
@click.option("--docker-image", help="With --peers: one of `docker images` that has python3.")
@click.option("--quick", is_flag=True, help="A few repetitions: whether it works, not how fast.")
@reporting
def bench_command(
    out: Output, live: tuple[int, ...], seconds: float, peers: bool, docker_image: str | None, quick: bool
) -> int:
    """Measure sandboxes on this machine: create, acquire, exec, one-shot Python, many at once.

    A peer that is not here is shown with the reason. Progress goes to stderr.

    \b
      tiltyard sandbox bench --json
      tiltyard sandbox bench --peers --live 100 --live 10000 --json
    """
    from tiltyard.sandbox.bench import Effort, measure

    try:
        figures = asyncio.run(
            measure(
                live_counts=live,
                effort=Effort.tiny() if quick else Effort(seconds=seconds),
                peers=peers,
                docker_image=docker_image,
                step=lambda what: click.echo(f"measuring {what}", err=True),
            )
        )
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    out.result(figures, lambda: out.table(["figure", "value#"], list(_flat("", figures))))
    return 0


def _flat(name: str, value: object) -> list[list[object]]:
    if isinstance(value, dict):
        return [row for key, part in value.items() for row in _flat(f"{name}.{key}".lstrip("."), part)]
    return [[name, value]]
