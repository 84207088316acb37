"""How the API's client fails.

Guarantees: the message of an error says what was wrong, where, and what to do.
Does not: hide a problem's faults; `problem` holds them."""

from tiltyard.contracts.http import Problem

MOST_FAULTS = 20
"""Named in a message."""


class ClientError(RuntimeError):
    """Any failure of a request."""


class ApiError(ClientError):
    """The registry answered with a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(_told(problem))


class Unreachable(ClientError):
    """The registry did not answer."""


def _told(problem: Problem) -> str:
    shown = problem.faults[:MOST_FAULTS]
    lines = [f"{problem.detail} ({problem.status} {problem.title})"]
    lines += [f"  {fault.path or 'document'}: {fault.message}" for fault in shown]
    if len(problem.faults) > len(shown):
        lines.append(f"  … and {len(problem.faults) - len(shown)} more")
    return "\n".join(lines)
