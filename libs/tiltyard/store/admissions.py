"""Admissions: jobs claimed under a lease, and the verdict that a task version gets.

Guarantees: a verdict counts only under the number that its lease was claimed with, and in the transaction
that makes the version ACTIVE or QUARANTINED; a failure of the platform is tried again, never a verdict.
Does not: judge a task (services/evaluator/admission.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Text, TextClause, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT
from sqlalchemy.orm import Session

from tiltyard.core.outcome import Charge
from tiltyard.core.retry import Again, Budgets, retry

PLATFORM_RETRIES = 8
"""Failures of the platform that one admission is forgiven; with back-off, about a minute."""
LONGEST_REPORT = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionTicket:
    """An admission under the number of one claim: what each later write must show."""

    id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAdmission:
    """What an evaluator needs for one admission, but for the task's spec (`gradings.specs`)."""

    ticket: AdmissionTicket
    version_id: str
    repeats: int
    spent: bool
    """The platform failed it so often that it is to be given up."""


_CLAIM = """
WITH waiting AS (
    SELECT id, state = 'LEASED' AS expired FROM admissions
    WHERE not_before <= clock_timestamp()
      AND (state = 'QUEUED' OR (state = 'LEASED' AND lease_until < clock_timestamp()))
    ORDER BY created_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE admissions a SET state = 'LEASED', number = a.number + 1, holder = :holder,
    lease_until = clock_timestamp() + :term,
    failures = a.failures + CASE WHEN waiting.expired THEN 1 ELSE 0 END
FROM waiting WHERE a.id = waiting.id
RETURNING a.id, a.number, a.version_id, a.repeats, a.failures
"""


def claim(session: Session, holder: str, limit: int, term: timedelta) -> list[ClaimedAdmission]:
    """Up to `limit` admissions that wait, or whose lease ran out; each is held for `term`."""
    rows = session.execute(text(_CLAIM), {"holder": holder, "limit": limit, "term": term})
    return [
        ClaimedAdmission(
            ticket=AdmissionTicket(id=r.id, number=r.number),
            version_id=r.version_id,
            repeats=r.repeats,
            spent=r.failures > PLATFORM_RETRIES,
        )
        for r in rows
    ]


def _held(statement: str, tickets: Sequence[AdmissionTicket]) -> tuple[TextClause, dict[str, Any]]:
    bound = text(
        f"{statement} FROM unnest(:ids, :numbers) AS k(id, number)"
        " WHERE a.id = k.id AND a.number = k.number AND a.state = 'LEASED' RETURNING a.id"
    ).bindparams(bindparam("ids", type_=ARRAY(Text)), bindparam("numbers", type_=ARRAY(BIGINT)))
    return bound, {"ids": [t.id for t in tickets], "numbers": [t.number for t in tickets]}


def renew(session: Session, tickets: Sequence[AdmissionTicket], term: timedelta) -> set[str]:
    """Hold these for another `term`; the ids that are still held."""
    statement, values = _held("UPDATE admissions a SET lease_until = clock_timestamp() + :term", tickets)
    return set(session.execute(statement, {**values, "term": term}).scalars())


def release(session: Session, tickets: Sequence[AdmissionTicket]) -> None:
    """Give claims back unused: nothing is charged."""
    statement, values = _held(
        "UPDATE admissions a SET state = 'QUEUED', holder = NULL, lease_until = NULL, announced_at = NULL",
        tickets,
    )
    session.execute(statement, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a task version may be trained on, and what its author should know."""

    admitted: bool
    oracle_passes: int
    oracle_failures: int
    noop_passes: int
    noop_failures: int
    report: str


def commit(session: Session, ticket: AdmissionTicket, verdict: Verdict) -> bool:
    """LEASED → DONE, and the version ACTIVE or QUARANTINED; False when the lease has passed to another."""
    version_id = session.execute(
        text(
            "UPDATE admissions SET state = 'DONE', finished_at = clock_timestamp(), report = :report,"
            " oracle_passes = :oracle_passes, oracle_failures = :oracle_failures,"
            " noop_passes = :noop_passes, noop_failures = :noop_failures"
            " WHERE id = :id AND number = :number AND state = 'LEASED' RETURNING version_id"
        ),
        {
            "id": ticket.id,
            "number": ticket.number,
            "report": verdict.report[:LONGEST_REPORT],
            "oracle_passes": verdict.oracle_passes,
            "oracle_failures": verdict.oracle_failures,
            "noop_passes": verdict.noop_passes,
            "noop_failures": verdict.noop_failures,
        },
    ).scalar_one_or_none()
    if version_id is None:
        return False
    session.execute(
        text("UPDATE task_versions SET state = :state WHERE id = :id"),
        {"id": version_id, "state": "ACTIVE" if verdict.admitted else "QUARANTINED"},
    )
    return True


def fail(
    session: Session, ticket: AdmissionTicket, *, reason: str, jitter: float, hopeless: bool = False
) -> str | None:
    """The platform failed: QUEUED with back-off, or FAILED once it failed too often; None when fenced off.
    `hopeless`: FAILED at once.

    The version stays as it was, so that its author may submit it again."""
    failures = session.execute(
        text(
            "SELECT failures + 1 FROM admissions"
            " WHERE id = :id AND number = :number AND state = 'LEASED' FOR UPDATE"
        ),
        {"id": ticket.id, "number": ticket.number},
    ).scalar_one_or_none()
    if failures is None:
        return None
    budgets = Budgets(grader=PLATFORM_RETRIES)
    decision = retry(Charge.GRADER, failures=failures, budgets=budgets, jitter=jitter)
    again = isinstance(decision, Again) and not hopeless
    state = "QUEUED" if again else "FAILED"
    session.execute(
        text(
            "UPDATE admissions SET state = :state, failures = :failures, report = :report, holder = NULL,"
            " lease_until = NULL, announced_at = NULL, not_before = clock_timestamp() + :after,"
            " finished_at = CASE WHEN :state = 'FAILED' THEN clock_timestamp() END WHERE id = :id"
        ),
        {
            "id": ticket.id,
            "state": state,
            "failures": failures,
            "report": _report(reason, again),
            "after": decision.after if isinstance(decision, Again) else timedelta(),
        },
    )
    return state


def _report(reason: str, again: bool) -> str:
    what = "it is tried again" if again else "given up; this says nothing about the task: submit it again"
    return f"The platform could not judge this task ({what}): {reason}"[:LONGEST_REPORT]


def unannounced(session: Session, older_than: timedelta, limit: int = 256) -> list[str]:
    """Admissions that wait and were never announced, or not for `older_than`; marks them announced now."""
    return list(
        session.execute(
            text(
                "UPDATE admissions SET announced_at = clock_timestamp() WHERE id IN ("
                " SELECT id FROM admissions WHERE not_before <= clock_timestamp()"
                " AND (state = 'QUEUED' OR (state = 'LEASED' AND lease_until < clock_timestamp()))"
                " AND (announced_at IS NULL OR announced_at < clock_timestamp() - CAST(:age AS interval))"
                " ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED) RETURNING id"
            ),
            {"age": older_than, "limit": limit},
        ).scalars()
    )
