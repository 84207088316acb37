"""Whether a task is fit to be trained on: lint → the oracle passes k times → the no-op fails k times.

Guarantees: a verdict rests on clean runs alone; a failure of the platform is `Unjudged`, never a verdict; the
report tells the author what was seen and what to do.
Does not: prove the tests good: k clean repeats bound the flake rate, and cheats are not tried here."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.evaluator.boxes import Boxes
from services.evaluator.grading import Measured, grade
from services.evaluator.lint import faults
from tiltyard.contracts.network import NONE, NetworkDemand, told
from tiltyard.contracts.records import ScoreRecord
from tiltyard.contracts.task_spec import HiddenSpec, PublicSpec
from tiltyard.core.outcome import Outcome, ruling
from tiltyard.sandbox import CapabilityRefused, NetworkRefused
from tiltyard.sandbox.network import Verdict as Passage
from tiltyard.store.admissions import Verdict

CONFIDENCE = 0.95
SHOWN = 10
"""Connections that a report tells of."""


class Unjudged(Exception):
    """The platform failed while it tried the task, or cannot try it."""

    def __init__(self, outcome: Outcome, reason: str, *, hopeless: bool = False) -> None:
        """`hopeless`: trying again changes nothing until someone changes the platform."""
        self.outcome, self.hopeless = outcome, hopeless
        super().__init__(f"{outcome}: {reason}")


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Repeated gradings of one answer."""

    runs: tuple[Measured, ...]

    @property
    def passes(self) -> int:
        return sum(run.reward == 1.0 for run in self.runs)

    @property
    def broken(self) -> Measured | None:
        return next((run for run in self.runs if run.outcome is Outcome.VERIFIER_BROKEN), None)

    @property
    def failed(self) -> Measured | None:
        return next((run for run in self.runs if run.reward != 1.0), None)


def flake_bound(repeats: int) -> float:
    """Upper 95 % bound on the rate at which the oracle fails, after `repeats` clean runs.

    Solves (1 − rate)^repeats = 0.05, the exact binomial bound (Clopper and Pearson, 1934)."""
    return 1.0 - (1.0 - CONFIDENCE) ** (1.0 / repeats)


async def judge(public: PublicSpec, hidden: HiddenSpec, repeats: int, boxes: Boxes) -> Verdict:
    """The verdict on a task. Raises `Unjudged`."""
    found = await asyncio.to_thread(faults, public, hidden)
    if found:
        return _refused("The task was not run, since reading it found faults.", found)
    _refuse_network(public, hidden, boxes)
    asked = _asked(public, hidden)
    oracle = await _trials(public, hidden, hidden.oracle.answer, repeats, boxes)
    if oracle.broken:
        return _verdict(oracle, Trials(runs=()), _tests_broken(oracle.broken), asked)
    noop = await _trials(public, hidden, hidden.oracle.noop, repeats, boxes)
    return _verdict(oracle, noop, _complaints(oracle, noop), asked)


def _refuse_network(public: PublicSpec, hidden: HiddenSpec, boxes: Boxes) -> None:
    """Raises `Unjudged` when this evaluator's boxes may or can not reach what the task asks for."""
    try:
        boxes.check(public.environment.network)
        boxes.check(hidden.verifier.network)
    except (NetworkRefused, CapabilityRefused) as error:
        raise Unjudged(Outcome.SANDBOX_FAILED, f"its network: {error}", hopeless=True) from error


def _asked(public: PublicSpec, hidden: HiddenSpec) -> str:
    """What of the network the task asks for; empty for nothing."""
    asked: tuple[tuple[str, NetworkDemand], ...] = (
        ("the policy's code", public.environment.network),
        ("the tests", hidden.verifier.network),
    )
    return "".join(f"\n\nNetwork: {who} may reach {told(demand)}." for who, demand in asked if demand != NONE)


async def _trials(public: PublicSpec, hidden: HiddenSpec, text: str, repeats: int, boxes: Boxes) -> Trials:
    """`repeats` gradings at once, each in sandboxes of its own."""
    runs = await asyncio.gather(*(grade(public, hidden.verifier, text, boxes) for _ in range(repeats)))
    for run in runs:
        if not ruling(run.outcome).valid and run.outcome is not Outcome.VERIFIER_BROKEN:
            raise Unjudged(run.outcome, run.reason)
    return Trials(runs=tuple(runs))


def _complaints(oracle: Trials, noop: Trials) -> list[str]:
    complaints = []
    repeats = len(oracle.runs)
    if oracle.failed:
        always = oracle.passes == 0
        complaints.append(
            f"The oracle failed {repeats - oracle.passes} of {repeats} runs; it must pass them all. "
            + (
                "Mend oracle.answer or the tests"
                if always
                else "The tests or the oracle are flaky: mend them"
            )
            + f", and submit again. What the run showed:\n{_shown(oracle.failed)}"
        )
    if noop.broken:
        complaints += _tests_broken(noop.broken)
    elif noop.passes:
        complaints.append(
            f"The no-op passed {noop.passes} of {repeats} runs; it must fail them all. The tests accept an "
            "answer that does nothing: add tests that the no-op fails, or make oracle.noop a wrong answer."
        )
    return complaints


def _tests_broken(run: Measured) -> list[str]:
    return [
        "The tests could not be collected, or ended without a verdict. Mend the verifier's files, and submit "
        f"again. What the run showed:\n{run.reason}\n{_shown(run)}"
    ]


def _shown(run: Measured) -> str:
    """The output that tells an author what happened."""
    stopped = [
        f"connection {each.verdict}: {each.detail}"
        for each in run.connections
        if each.verdict is not Passage.allowed
    ]
    scores = [_shown_score(score) for score in run.scores if score.value != 1.0]
    return "\n".join((*scores, *stopped[:SHOWN])) or run.reason


def _shown_score(score: ScoreRecord) -> str:
    parts = [f"[{score.component}] {score.outcome}", score.detail, _tail(score.stdout), _tail(score.stderr)]
    return "\n".join(part for part in parts if part)


def _tail(text: str, limit: int = 2_000) -> str:
    return text if len(text) <= limit else f"…{text[-limit:]}"


def _verdict(oracle: Trials, noop: Trials, complaints: Sequence[str], asked: str) -> Verdict:
    return Verdict(
        admitted=not complaints,
        oracle_passes=oracle.passes,
        oracle_failures=len(oracle.runs) - oracle.passes,
        noop_passes=noop.passes,
        noop_failures=len(noop.runs) - noop.passes,
        report=("\n\n".join(complaints) if complaints else _praise(len(oracle.runs))) + asked,
    )


def _praise(repeats: int) -> str:
    return (
        f"The oracle passed {repeats} of {repeats} runs and the no-op failed {repeats} of {repeats}. "
        f"With 95 % confidence the oracle fails fewer than {flake_bound(repeats):.0%} of runs; "
        "more repeats at submission make this bound tighter."
    )


def _refused(why: str, complaints: Sequence[str]) -> Verdict:
    lines = "\n".join(f"- {c}" for c in complaints)
    return Verdict(
        admitted=False,
        oracle_passes=0,
        oracle_failures=0,
        noop_passes=0,
        noop_failures=0,
        report=f"{why} Mend these and submit again:\n{lines}",
    )
