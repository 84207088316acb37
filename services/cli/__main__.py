"""`tiltyard`, and `python -m services.cli`."""

import sys

import click

from services.cli.lazy import Later, LazyGroup

COMMANDS = {
    "demo": Later(where="services.cli.demo.command:demo", help="The whole loop, once, in minutes."),
    "up": Later(where="services.cli.lifecycle:up", help="Start the whole platform on this machine."),
    "down": Later(where="services.cli.lifecycle:down", help="Stop it."),
    "status": Later(where="services.cli.lifecycle:status", help="Show what runs, and the console's link."),
    "task": Later(where="services.cli.tasks:task", help="Submit tasks and see how they were admitted."),
    "run": Later(where="services.cli.runs:run", help="Start, watch, reconcile and cancel runs."),
    "rollout": Later(where="services.cli.rollouts:rollout", help="Look into rollouts and their traces."),
    "dlq": Later(where="services.cli.dead_letters:dlq", help="See what came to nothing, and try it again."),
    "fleet": Later(where="services.cli.fleet:fleet", help="Show the runners, and drain them."),
    "queue": Later(where="services.cli.fleet:queue", help="Show who waits for what, and set shares."),
    "sandbox": Later(where="services.cli.sandbox:sandbox", help="See what this machine can isolate."),
    "bench": Later(where="services.cli.bench.command:bench", help="Measure the platform on this machine."),
}  # fmt: skip
EPILOG = """\b
First steps:
  tiltyard demo                         the whole loop in a few minutes
  tiltyard up                           start the platform, keep it running
  tiltyard task submit task.json --taskset mine --wait
  tiltyard run start run.toml --watch

Every command takes --json: one JSON document on stdout, words for people on stderr.
Exit codes: 0 success, 1 failure, 2 wrong usage."""


@click.group(
    cls=LazyGroup, later=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="tiltyard", prog_name="tiltyard")
def tiltyard() -> None:
    """Post-training of language models on executable, verifiable tasks."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    from services.cli.output import fail

    try:
        outcome = tiltyard.main(standalone_mode=False)
    except click.ClickException as error:
        sys.exit(fail(error, as_json="--json" in sys.argv))
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    sys.exit(outcome if isinstance(outcome, int) else 0)


if __name__ == "__main__":
    main()
