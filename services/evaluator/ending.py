"""How a sandboxed run's end reads in the platform's table of outcomes: the one place.

Guarantees: every `ExecOutcome` has a row; a wall-clock end of a starved sandbox is never the code's fault.
Does not: rule on validity (`tiltyard.core.outcome`)."""

from tiltyard.core.outcome import Outcome
from tiltyard.sandbox import ExecOutcome, ExecResult

ENDS: dict[ExecOutcome, Outcome] = {
    ExecOutcome.OK: Outcome.GRADED,
    ExecOutcome.NONZERO: Outcome.CODE_CRASHED,
    ExecOutcome.SIGNALLED: Outcome.CODE_CRASHED,
    ExecOutcome.TIMEOUT_CPU: Outcome.CODE_CPU_LIMIT,
    ExecOutcome.TIMEOUT_WALL: Outcome.CODE_WALL_LIMIT,
    ExecOutcome.TIMEOUT_IDLE: Outcome.CODE_WALL_LIMIT,
    ExecOutcome.OOM: Outcome.CODE_OUT_OF_MEMORY,
    ExecOutcome.PIDS: Outcome.CODE_PROCESS_LIMIT,
    ExecOutcome.OUTPUT_LIMIT: Outcome.CODE_OUTPUT_LIMIT,
    ExecOutcome.DISK_LIMIT: Outcome.CODE_DISK_LIMIT,
    ExecOutcome.INFRA_ERROR: Outcome.SANDBOX_FAILED,
}


def ending(result: ExecResult) -> Outcome:
    """The outcome of a run of the policy's code; `GRADED` when it ended well."""
    end = ENDS[result.outcome]
    return Outcome.STARVED if end is Outcome.CODE_WALL_LIMIT and result.starved else end
