"""Admissions as rows: a verdict counts under its lease, and the platform's failure is never one."""

from datetime import timedelta

from sqlalchemy import text

from tiltyard.store import admissions
from tiltyard.store.admissions import PLATFORM_RETRIES, AdmissionTicket, ClaimedAdmission, Verdict
from tiltyard.testing.rows import Rows, addition

TERM = timedelta(seconds=60)


def _verdict(admitted: bool) -> Verdict:
    return Verdict(
        admitted=admitted, oracle_passes=3, oracle_failures=0, noop_passes=0, noop_failures=3, report="seen"
    )


def _claim(rows: Rows) -> list[ClaimedAdmission]:
    with rows.work() as session:
        return admissions.claim(session, "a", 32, TERM)


def test_a_verdict_makes_the_version_active_or_quarantined(rows: Rows) -> None:
    for name, admitted, state in (("a", True, "ACTIVE"), ("b", False, "QUARANTINED")):
        version_id, _ = rows.task(addition(name), repeats=3)
        (claimed,) = _claim(rows)
        assert claimed.repeats == 3
        with rows.work() as session:
            assert admissions.commit(session, claimed.ticket, _verdict(admitted))
        assert rows.value("SELECT state FROM task_versions WHERE id = :id", id=version_id) == state
    assert rows.value("SELECT count(*) FROM admissions WHERE state = 'DONE' AND report = 'seen'") == 2


def test_a_late_verdict_does_not_count(rows: Rows) -> None:
    version_id, _ = rows.task()
    (late,) = _claim(rows)
    with rows.work() as session:
        session.execute(text("UPDATE admissions SET lease_until = clock_timestamp() - interval '1 second'"))
    (current,) = _claim(rows)
    with rows.work() as session:
        assert not admissions.commit(session, late.ticket, _verdict(False))
        assert admissions.fail(session, late.ticket, reason="late", jitter=0.0) is None
        assert admissions.renew(session, [late.ticket], TERM) == set()
        assert admissions.renew(session, [current.ticket], TERM) == {current.ticket.id}
    assert rows.value("SELECT state FROM task_versions WHERE id = :id", id=version_id) == "SUBMITTED"


def test_a_failure_of_the_platform_is_tried_again_and_leaves_the_version_as_it_was(rows: Rows) -> None:
    version_id, admission_id = rows.task()
    states = []
    for _ in range(PLATFORM_RETRIES + 1):
        (claimed,) = _claim(rows)
        with rows.work() as session:
            states.append(admissions.fail(session, claimed.ticket, reason="no sandbox", jitter=0.0))
    assert states == ["QUEUED"] * PLATFORM_RETRIES + ["FAILED"]
    assert rows.value("SELECT state FROM task_versions WHERE id = :id", id=version_id) == "SUBMITTED"
    report = rows.value("SELECT report FROM admissions WHERE id = :id", id=admission_id)
    assert "no sandbox" in report
    assert "submit it again" in report


def test_what_no_repetition_can_change_is_given_up_at_once(rows: Rows) -> None:
    version_id, admission_id = rows.task()
    (claimed,) = _claim(rows)
    with rows.work() as session:
        state = admissions.fail(session, claimed.ticket, reason="no network", jitter=0.0, hopeless=True)
    assert state == "FAILED"
    assert rows.value("SELECT state FROM task_versions WHERE id = :id", id=version_id) == "SUBMITTED"
    assert "given up" in rows.value("SELECT report FROM admissions WHERE id = :id", id=admission_id)


def test_an_admission_that_kills_its_evaluators_is_marked_spent(rows: Rows) -> None:
    rows.task()
    spent = []
    for _ in range(PLATFORM_RETRIES + 2):
        spent.append(_claim(rows)[0].spent)
        with rows.work() as session:
            session.execute(text("UPDATE admissions SET lease_until = clock_timestamp() - interval '1 s'"))
    assert spent == [False] * (PLATFORM_RETRIES + 1) + [True]


def test_what_is_released_waits_again_and_is_announced(rows: Rows) -> None:
    _, admission_id = rows.task()
    age = timedelta(seconds=30)
    with rows.work() as session:
        assert admissions.unannounced(session, age) == [admission_id]
        assert admissions.unannounced(session, age) == []
    (claimed,) = _claim(rows)
    with rows.work() as session:
        admissions.release(session, [claimed.ticket])
        assert admissions.unannounced(session, age) == [admission_id]
    assert [c.ticket for c in _claim(rows)] == [AdmissionTicket(id=admission_id, number=2)]
