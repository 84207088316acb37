"""`tiltyard sandbox`: what this machine can isolate, and how fast."""

import asyncio
import sys
from dataclasses import asdict
from typing import Any

import click

from services.cli.output import Output, reporting
from tiltyard.sandbox import DoctorReport, ExecResult, Health, Limits, SandboxError, WarmPool, doctor


@click.group(no_args_is_help=True)
def sandbox() -> None:
    """See what this machine can isolate.

    \b
    tiltyard sandbox doctor            what works here, and what to do about the rest
    tiltyard sandbox run -- python3 -c 'print(1)'
    tiltyard sandbox check             every law of isolation, tried
    tiltyard sandbox bench             how fast

    Native sandboxes share this machine's kernel: right for your own model's code on a machine that runs
    nothing else."""


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
@click.option("--memory-mb", default=512, show_default=True, help="MiB of memory, its files included.")
@click.option("--pids", default=64, show_default=True, help="Processes and threads.")
@click.option("--cpus", default=1.0, show_default=True, help="CPUs.")
@click.option("--cpu-seconds", default=10.0, show_default=True, help="CPU time.")
@click.option("--wall-seconds", type=float, help="Time; by default twice the CPU time and 5.")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@reporting
def run_command(
    out: Output,
    argv: tuple[str, ...],
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
    """
    try:
        limits = Limits(memory_mb=memory_mb, pids=pids, cpus=cpus, disk_mb=min(64, memory_mb // 2))
        stdin = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
        result = asyncio.run(_run(argv, limits, stdin, cpu_seconds, wall_seconds))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    out.result(_plain(result))
    if not out.as_json:
        click.echo(result.stdout, nl=False)
        click.echo(result.stderr, nl=False, err=True)
        click.echo(f"{result.outcome}: {result.detail or f'{result.wall_seconds:.3f} s'}", err=True)
    return 1 if result.exit_code is None else result.exit_code


async def _run(
    argv: tuple[str, ...], limits: Limits, stdin: bytes, cpu_seconds: float, wall_seconds: float | None
) -> ExecResult:
    async with WarmPool(size=1, limits=limits) as pool, pool.acquire() as box:
        return await box.exec(argv, stdin=stdin, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)


def _plain(result: ExecResult) -> dict[str, Any]:
    streams = {name: getattr(result, name).decode(errors="replace") for name in ("stdout", "stderr")}
    return {**asdict(result), **streams}


@sandbox.command("check")
@click.option("--backend", type=click.Choice(["native"]), default="native", show_default=True)
@reporting
def check_command(out: Output, backend: str) -> int:
    """Try every law of isolation on this machine. Exit code 1: one does not hold.

    \b
      tiltyard sandbox check
    """
    try:
        findings = asyncio.run(_conform())
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    holds = all(finding.holds for finding in findings)
    document = {"backend": backend, "holds": holds, "laws": [asdict(finding) for finding in findings]}
    rows = [[f.law, "holds" if f.holds else "BROKEN", "" if f.holds else f.detail] for f in findings]
    out.result(document, lambda: out.table(["law", "", "found"], rows))
    return 0 if holds else 1


async def _conform() -> list[Any]:
    from tiltyard.sandbox.conformance import LIMITS, conform

    async with WarmPool(size=2, limits=LIMITS) as pool:
        return [finding async for finding in conform(pool)]


@sandbox.command("bench")
@click.option(
    "--live", type=int, multiple=True, default=(100,), show_default=True, help="Idle boxes at once."
)
@click.option("--seconds", default=3.0, show_default=True, help="How long to run one-shot programs.")
@reporting
def bench_command(out: Output, live: tuple[int, ...], seconds: float) -> int:
    """Measure sandboxes on this machine: create, acquire, exec, one-shot Python, many at once.

    \b
      tiltyard sandbox bench --json
    """
    from tiltyard.sandbox.bench import measure

    try:
        figures = asyncio.run(measure(live_counts=live, seconds=seconds))
    except SandboxError as error:
        raise click.ClickException(str(error)) from error
    out.result(figures, lambda: out.table(["figure", "value#"], list(_flat("", figures))))
    return 0


def _flat(name: str, value: object) -> list[list[object]]:
    if isinstance(value, dict):
        return [row for key, part in value.items() for row in _flat(f"{name}.{key}".lstrip("."), part)]
    return [[name, value]]
