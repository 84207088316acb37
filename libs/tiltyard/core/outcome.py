"""How each typed end of an attempt or a grading is treated: one closed table.

Guarantees: nothing else in the code decides whether an end is retried, may vote in its group or is graded; a
kind that is not in the table cannot exist, and `UNKNOWN` is invalid.
Does not: count retries (`core.retry`) or add scores up (`core.reward`)."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The typed end of an attempt or of a grading."""

    COMPLETED = "completed"
    """The episode ran to its end."""
    TOKEN_LIMIT = "token_limit"
    """The policy used up its tokens."""
    TURN_LIMIT = "turn_limit"
    """The policy used up its turns."""
    WALL_LIMIT = "wall_limit"
    """The episode used up its wall-clock time while its sandbox had CPU to run on."""
    GRADED = "graded"
    """Every component of the verifier gave a score."""
    CODE_CPU_LIMIT = "code_cpu_limit"
    """The policy's code burned its CPU time."""
    CODE_WALL_LIMIT = "code_wall_limit"
    """The policy's code used up its wall-clock time while it had CPU to run on."""
    CODE_OUT_OF_MEMORY = "code_out_of_memory"
    """The policy's code ran out of memory inside its sandbox."""
    CODE_PROCESS_LIMIT = "code_process_limit"
    """The policy's code made more processes than its sandbox allows."""
    CODE_OUTPUT_LIMIT = "code_output_limit"
    """The policy's code flooded its output."""
    CODE_DISK_LIMIT = "code_disk_limit"
    """The policy's code filled its disk."""
    CODE_CRASHED = "code_crashed"
    """The policy's code ended before it had answered."""
    SANDBOX_FAILED = "sandbox_failed"
    """A sandbox would not start, or broke."""
    STARVED = "starved"
    """A wall-clock limit was hit while the sandbox was starved of CPU."""
    RUNNER_LOST = "runner_lost"
    """The incarnation that held the attempt fell silent or died."""
    INFERENCE_FAILED = "inference_failed"
    """The rollout service did not answer, or answered with an error."""
    ARTIFACT_FAILED = "artifact_failed"
    """An artifact could not be stored, or was missing or corrupt when read."""
    VERIFIER_BROKEN = "verifier_broken"
    """The task's own tests could not be collected, or ended without a verdict."""
    GRADER_FAILED = "grader_failed"
    """The evaluator itself failed or was lost."""
    JUDGE_UNPARSEABLE = "judge_unparseable"
    """A judge gave no readable verdict."""
    PREEMPTED = "preempted"
    """Yielded its place to work of a higher class."""
    CANCELLED = "cancelled"
    """Withdrawn before it ended."""
    UNKNOWN = "unknown"
    """An end that nothing else explains."""


class Charge(StrEnum):
    """Whose retry budget an end is charged to."""

    NOTHING = "nothing"
    """Not retried."""
    INFRASTRUCTURE = "infrastructure"
    """The attempt is made anew, within the infrastructure's budget."""
    GRADER = "grader"
    """The grading is made anew; the attempt stands."""
    PREEMPTION = "preemption"
    """The attempt is made anew, free of charge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What follows from an end."""

    valid: bool
    """Whether the rollout may vote in its group."""
    charge: Charge
    reason: str


def _votes(reason: str) -> Ruling:
    return Ruling(valid=True, charge=Charge.NOTHING, reason=reason)


def _absent(charge: Charge, reason: str) -> Ruling:
    return Ruling(valid=False, charge=charge, reason=reason)


RULINGS: dict[Outcome, Ruling] = {
    Outcome.COMPLETED: _votes("the policy finished"),
    Outcome.TOKEN_LIMIT: _votes("the policy chose its length"),
    Outcome.TURN_LIMIT: _votes("the policy chose its turns"),
    Outcome.WALL_LIMIT: _votes("the policy had its time and its CPU"),
    Outcome.GRADED: _votes("every component was measured"),
    Outcome.CODE_CPU_LIMIT: _votes("CPU time is counted inside the sandbox"),
    Outcome.CODE_WALL_LIMIT: _votes("the code waited by itself: nothing starved it"),
    Outcome.CODE_OUT_OF_MEMORY: _votes("the sandbox has its own memory"),
    Outcome.CODE_PROCESS_LIMIT: _votes("the sandbox has its own processes"),
    Outcome.CODE_OUTPUT_LIMIT: _votes("the code chose its output"),
    Outcome.CODE_DISK_LIMIT: _votes("the sandbox has its own disk"),
    Outcome.CODE_CRASHED: _votes("the code ended by itself"),
    Outcome.SANDBOX_FAILED: _absent(Charge.INFRASTRUCTURE, "the policy never had its environment"),
    Outcome.STARVED: _absent(Charge.INFRASTRUCTURE, "the host took the CPU that the code was owed"),
    Outcome.RUNNER_LOST: _absent(Charge.INFRASTRUCTURE, "the episode was cut off"),
    Outcome.INFERENCE_FAILED: _absent(Charge.INFRASTRUCTURE, "the policy was never asked, or not heard"),
    Outcome.ARTIFACT_FAILED: _absent(Charge.INFRASTRUCTURE, "what happened was not kept"),
    Outcome.VERIFIER_BROKEN: _absent(Charge.GRADER, "the instrument is broken, not the answer"),
    Outcome.GRADER_FAILED: _absent(Charge.GRADER, "nothing was measured"),
    Outcome.JUDGE_UNPARSEABLE: _absent(Charge.GRADER, "no verdict is not a bad verdict"),
    Outcome.PREEMPTED: _absent(Charge.PREEMPTION, "the platform took the place back"),
    Outcome.CANCELLED: _absent(Charge.NOTHING, "nobody wants it any more"),
    Outcome.UNKNOWN: _absent(Charge.INFRASTRUCTURE, "what is not understood does not vote"),
}


def ruling(outcome: Outcome) -> Ruling:
    """The row of the table for `outcome`."""
    return RULINGS[outcome]
