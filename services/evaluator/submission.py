"""What is graded: one answer to one task, with everything that its sandboxes are made from.

Guarantees: text that came from a policy is bytes or printable before anything is done with it.
Does not: hold the verifier; components get theirs apart, so that only the harness box ever sees tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tiltyard.contracts.network import NONE, NetworkDemand
from tiltyard.contracts.task_spec import PublicSpec
from tiltyard.sandbox import Connection, Limits
from tiltyard.sandbox.network import Reason, Rule, Verdict

HOME = "/box"
KEPT = 20_000
"""Characters of output kept with a score."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """An answer under its task."""

    spec: PublicSpec
    answer: str
    tests_network: NetworkDemand = NONE
    """What the tests' own sandbox may reach."""
    connections: list[Connection] = field(default_factory=list[Connection])
    """Out of its sandboxes, as they end."""

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The work folder: the task's files, and the answer in its place."""
        given = {path: text.encode() for path, text in self.spec.environment.files.items()}
        solution = self.spec.solution(self.answer).encode("utf-8", "surrogatepass")
        return {**given, self.spec.interface.file: solution}

    @cached_property
    def shape(self) -> Limits:
        """What its sandboxes may use."""
        asked = self.spec.environment.resources
        return Limits(memory_mb=asked.memory_mb, pids=asked.pids, cpus=asked.cpus, disk_mb=asked.disk_mb)


def unreached(submission: Submission) -> str:
    """A host that the task names without a wildcard, and that could not be reached: no fault of the
    answer's. Empty when there is none."""
    lost = [
        each
        for each in submission.connections
        if each.verdict is Verdict.failed and each.reason in (Reason.unreachable, Reason.unknown_name)
    ]
    if not lost:
        return ""
    asked = (submission.spec.environment.network, submission.tests_network)
    named = {Rule.parse(text) for demand in asked if not isinstance(demand, str) for text in demand.allow}
    return next((each.detail for each in lost if Rule(each.host, each.port) in named), "")


def printable(text: str | bytes, limit: int = KEPT) -> str:
    """At most `limit` characters that every store takes: no NUL, no lone surrogate, nothing undecodable."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "replace")
    kept = text[:limit].encode("utf-8", "replace").decode("utf-8")
    return kept.replace("\x00", "\N{REPLACEMENT CHARACTER}")
