"""`tiltyard dlq`: what came to nothing, and another try for it.

Guarantees: all of it goes through the HTTP API.
Does not: move messages; a redrive is a new fence for the rollout's row."""

from itertools import islice
from typing import TYPE_CHECKING

import click

from services.cli.connection import reaching
from services.cli.output import Output, reporting
from services.cli.rollouts import show

if TYPE_CHECKING:
    from tiltyard.client import Client
    from tiltyard.contracts.http import RolloutView

ENDS = ("DEAD", "FAILED", "INVALID", "EXPIRED")
"""States in which a rollout came to nothing."""


@click.group()
def dlq() -> None:
    """See what came to nothing, and try it again."""


@dlq.command("list")
@click.option("--run", "run_reference", help="Id or name of a run.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Of each state.")
@reporting
@reaching
def list_dead(out: Output, client: "Client", run_reference: str | None, limit: int) -> None:
    """List rollouts that ended without a reward, and messages that the broker gave up on.

    \b
      tiltyard dlq list
      tiltyard dlq list --run add --limit 10 --json
    """
    rollouts = [
        rollout
        for state in ENDS
        for rollout in islice(client.rollouts(run=run_reference, state=state), limit)
    ]
    letters = list(client.dead_letters())
    rows = [(r.id, r.state, r.task_name, r.fence, r.outcome or "", r.reason) for r in rollouts]
    out.result(
        {"rollouts": rollouts, "broker": letters},
        lambda: out.table(["rollout", "state", "task", "fence#", "outcome", "why"], rows),
    )
    if letters and not out.as_json:
        out.say(f"and {len(letters)} messages of the broker's, whose rows are announced again (--json)")


dlq.add_command(show)


@dlq.command()
@click.argument("rollout_ids", metavar="ID…", nargs=-1, required=True)
@reporting
@reaching
def redrive(out: Output, client: "Client", rollout_ids: tuple[str, ...]) -> int:
    """Send rollouts back to the queue, each under a new fence and with a full retry budget.

    A rollout that is on its way, whose group is settled or whose run has ended is refused with the reason;
    the others go all the same, and the exit code is 1.

    \b
      tiltyard dlq redrive 019ad5d2-… 019ad5d3-…
    """
    from tiltyard.client.errors import ApiError

    sent: list[RolloutView] = []
    refused: dict[str, str] = {}
    for rollout_id in dict.fromkeys(rollout_ids):
        try:
            sent.append(client.redrive(rollout_id))
        except ApiError as error:
            refused[rollout_id] = str(error)
    rows = [(r.id, r.state, r.fence) for r in sent]
    out.result(
        {"rollouts": sent, "refused": [{"id": i, "reason": why} for i, why in refused.items()]},
        lambda: out.table(["rollout", "state", "fence#"], rows),
    )
    for rollout_id, why in refused.items():
        click.echo(f"{rollout_id}: {why}", err=True)
    return 1 if refused else 0
