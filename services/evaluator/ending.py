"""How a sandboxed run's end reads in the platform's table of outcomes: the one place.

Guarantees: every `ExecOutcome` has a row; a wall-clock end of a starved sandbox is never the code's fault.
Does not: rule on validity (`tiltyard.core.outcome`)."""

from tiltyard.core.outcome import Outcome
from tiltyard.sandbox import ExecOutcome, ExecResult

ENDS: dict[ExecOutcome, Outcome] = {
    ExecOutcome.ok: Outcome.GRADED,
    ExecOutcome.nonzero: Outcome.CODE_CRASHED,
    ExecOutcome.signalled: Outcome.CODE_CRASHED,
    ExecOutcome.timeout_cpu: Outcome.CODE_CPU_LIMIT,
    ExecOutcome.timeout_wall: Outcome.CODE_WALL_LIMIT,
    ExecOutcome.timeout_idle: Outcome.CODE_WALL_LIMIT,
    ExecOutcome.oom: Outcome.CODE_OUT_OF_MEMORY,
    ExecOutcome.pids: Outcome.CODE_PROCESS_LIMIT,
    ExecOutcome.output_limit: Outcome.CODE_OUTPUT_LIMIT,
    ExecOutcome.disk_limit: Outcome.CODE_DISK_LIMIT,
    ExecOutcome.infra_error: Outcome.SANDBOX_FAILED,
}


def ending(result: ExecResult) -> Outcome:
    """The outcome of a run of the policy's code; `GRADED` when it ended well."""
    end = ENDS[result.outcome]
    return Outcome.STARVED if end is Outcome.CODE_WALL_LIMIT and result.starved else end
