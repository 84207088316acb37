"""`tiltyard fleet …` and `tiltyard queue …`.

Guarantees: a table shows what the API tells, and nothing that it does not.
Does not: reach runners; the dispatcher acts on the rows."""

from typing import TYPE_CHECKING, Any

import click

from services.cli.connection import reaching
from services.cli.output import Output, reporting

if TYPE_CHECKING:
    from tiltyard.client import Client
    from tiltyard.contracts.http import NodeHealth, QueueEntry, QueueView, RunnerView


@click.group()
def fleet() -> None:
    """Show the runners, and drain them."""


@fleet.command("show")
@click.option("--ended", is_flag=True, help="Those that have ended too.")
@reporting
@reaching
def show_fleet(out: Output, client: "Client", ended: bool) -> None:
    """Show runner incarnations, their capacity, what they have aboard, and how well their sandboxes are: one
    that is `ill`, since too much failed or the machine is out of memory, gets nothing until it is well again.

    \b
      tiltyard fleet show --ended
    """
    runners = client.fleet(ended=ended)
    out.result({"runners": list(runners)}, lambda: _runners(out, runners))


def _runners(out: Output, runners: "tuple[RunnerView, ...]") -> object:
    rows = [
        (
            r.incarnation,
            r.node,
            r.pool,
            _state(r),
            r.aboard,
            f"{r.used_slots}/{r.slots}",
            f"{r.used_cpu:g}/{r.cpu:g}",
            f"{r.used_memory_mb}/{r.memory_mb}",
            f"{r.used_gpu}/{r.gpu}",
            _sandboxes(r.health),
            r.version,
        )
        for r in runners
    ]
    columns = ["incarnation", "node", "pool", "state", "aboard#", "slots#", "cpu#", "memory MiB#", "gpu#"]
    return out.table([*columns, "sandboxes", "version"], rows)


def _state(runner: "RunnerView") -> str:
    if not runner.alive:
        return "ended"
    if runner.health is not None and runner.health.state == "open":
        return "ill, draining" if runner.draining else "ill"
    return "draining" if runner.draining else "ready"


def _sandboxes(health: "NodeHealth | None") -> str | None:
    """Why none is lent, else how hard the machine is pressed; what drifted."""
    if health is None:
        return None
    pressed = ", ".join(f"{name} {percent:.0f} %" for name, percent in sorted(health.pressure.items()))
    drifted = f"; {health.drifted} drifted" if health.drifted else ""
    return (health.reason or pressed or "well") + drifted


@fleet.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Grant to the node again.")
@reporting
@reaching
def drain(out: Output, client: "Client", node: str, undo: bool) -> None:
    """Grant nothing more to NODE; what it has aboard is finished.

    \b
      tiltyard fleet drain worker-3
    """
    runners = client.drain(node, draining=not undo)
    out.result({"runners": list(runners)}, lambda: _runners(out, runners))


@click.group()
def queue() -> None:
    """Show who waits for what, and set weights and caps."""


@queue.command("show")
@reporting
@reaching
def show_queue(out: Output, client: "Client") -> None:
    """Show each pool and run: backlog, oldest wait, share, deficit, and why work waits.

    \b
      tiltyard queue show
    """
    view = client.queue()
    out.result(view, lambda: _pools(out, view))
    if not out.as_json and view.runs:
        out.say("")
        out.say(out.table(COLUMNS, [_row(entry) for entry in view.runs]))


COLUMNS = [
    "run", "tenant", "pool", "priority", "queued#", "oldest#", "aboard#", "share#", "tenant#", "due#",
    "deficit s#", "waits for",
]  # fmt: skip


def _pools(out: Output, view: "QueueView") -> object:
    rows = [
        (
            p.name,
            f"{p.runners} ({p.draining} draining)",
            p.desired_runners,
            p.queued,
            p.aboard,
            f"{p.used_slots}/{p.slots}",
            f"{p.used_cpu:g}/{p.cpu:g}",
            f"{p.used_gpu}/{p.gpu}",
        )
        for p in view.pools
    ]
    return out.table(["pool", "runners", "desired#", "queued#", "aboard#", "slots#", "cpu#", "gpu#"], rows)


def _row(entry: "QueueEntry") -> tuple[object, ...]:
    served = entry.priority if entry.served_as == entry.priority else f"{entry.priority}→{entry.served_as}"
    return (
        entry.run or "(another tenant's)",
        entry.tenant,
        entry.pool,
        served,
        entry.queued,
        None if entry.oldest_wait_seconds is None else f"{entry.oldest_wait_seconds:.0f} s",
        entry.aboard,
        f"{entry.share:.1%}",
        f"{entry.tenant_share:.1%}",
        None if entry.tenant_due is None else f"{entry.tenant_due:.1%}",
        f"{entry.tenant_deficit_seconds:+.1f}",
        entry.waits_for or None,
    )


class Cap(click.ParamType):
    """A number, or `none` to take a cap away."""

    name = "N|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == "none":
            return value
        return click.IntRange(0).convert(value, param, ctx)


@queue.command()
@click.option("--tenant", help="Whose limits to change.")
@click.option("--pool", help="The pool whose limits to change.")
@click.option("--image", help="The image, as tasks name it, whose cap to change.")
@click.option("--weight", type=click.FloatRange(0, min_open=True), help="Of a tenant, against the others.")
@click.option("--max-running", type=Cap(), help="Most rollouts granted at once.")
@click.option("--max-queued", type=Cap(), help="Of a tenant: queued rollouts at which no run is taken.")
@click.option("--headroom", type=click.IntRange(0), help="Of a pool: slots that only high runs may take.")
@reporting
@reaching
def limit(
    out: Output,
    client: "Client",
    tenant: str | None,
    pool: str | None,
    image: str | None,
    **given: object,
) -> None:
    """Change the limits of a tenant, a pool or an image; what is left out stays as it is.

    \b
      tiltyard queue limit --tenant default --weight 2 --max-running 500
      tiltyard queue limit --pool gpu --max-running none --headroom 8
      tiltyard queue limit --image browser --max-running 20
    """
    from tiltyard.contracts.http import ImageLimits, PoolLimits, TenantLimits

    kinds = {"tenant": (tenant, TenantLimits), "pool": (pool, PoolLimits), "image": (image, ImageLimits)}
    named = [(kind, name, model) for kind, (name, model) in kinds.items() if name is not None]
    if len(named) != 1:
        raise click.UsageError("give --tenant, --pool or --image, one of them")
    ((kind, name, model),) = named
    change = {key: None if value == "none" else value for key, value in given.items() if value is not None}
    if odd := sorted(change.keys() - model.model_fields.keys()):
        raise click.UsageError(
            f"the limits of {kind}s have no {', '.join('--' + o.replace('_', '-') for o in odd)}"
        )
    if not change:
        settable = ", ".join("--" + field.replace("_", "-") for field in model.model_fields)
        raise click.UsageError(f"nothing is given to change; the limits of {kind}s are {settable}")
    send = {"tenant": client.limit_tenant, "pool": client.limit_pool, "image": client.limit_image}[kind]
    now = send(name, model(**change))  # type: ignore[arg-type]
    out.result(now, lambda: out.table([kind, *type(now).model_fields], [(name, *now.model_dump().values())]))
