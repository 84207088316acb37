"""Gradings as rows: a result counts under its lease, moves its rollout, and a failure is never a reward."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor
from tiltyard.store import gradings, rollouts
from tiltyard.store.gradings import ClaimedGrading, FailedGrading, Graded, ScoreRow
from tiltyard.testing.rows import Rows

TERM = timedelta(seconds=60)
SCORE = ScoreRow(component="tests", value=0.5, weight=1.0, gate=False, tier=0, outcome=Outcome.GRADED)


def _claim(rows: Rows, limit: int = 32, holder: str = "a", term: timedelta = TERM) -> list[ClaimedGrading]:
    with rows.work() as session:
        return gradings.claim(session, holder, limit, term)


def _graded(claimed: ClaimedGrading, reward: float = 0.5) -> Graded:
    return Graded(
        ticket=claimed.ticket,
        verifier="v",
        outcome=Outcome.GRADED,
        reward=reward,
        artifact="key",
        scores=(SCORE,),
    )


def _failed(claimed: ClaimedGrading, outcome: Outcome = Outcome.STARVED) -> FailedGrading:
    return FailedGrading(ticket=claimed.ticket, outcome=outcome, reason="because", jitter=0.0)


def _expire(rows: Rows) -> None:
    with rows.work() as session:
        session.execute(text("UPDATE gradings SET lease_until = clock_timestamp() - interval '1 second'"))


def test_a_batch_of_gradings_scores_its_rollouts_in_one_transaction(rows: Rows) -> None:
    seeded = rows.run()
    rows.produced(seeded, 3)
    claimed = _claim(rows)
    assert [c.ticket.number for c in claimed] == [1, 1, 1]
    assert claimed[0].version_id == seeded.version_id
    assert claimed[0].traceparent.startswith("00-")
    with rows.work() as session:
        kept = gradings.commit(
            session, [_graded(c, r) for c, r in zip(claimed, (0.0, 0.5, 1.0), strict=True)]
        )
    assert kept == {c.ticket.id for c in claimed}
    assert rows.states(seeded) == ["SCORED"] * 3
    assert rows.value("SELECT sum(reward) FROM rollouts") == 1.5
    assert rows.value("SELECT count(*) FROM gradings WHERE selected AND state = 'DONE'") == 3
    assert rows.value("SELECT count(*) FROM scores WHERE value = 0.5") == 3


def test_two_claims_never_share_a_grading(rows: Rows) -> None:
    rows.produced(rows.run(), 3)
    first, second = _claim(rows, 2), _claim(rows, 2, "b")
    assert len(first) == 2
    assert len(second) == 1
    assert not {c.ticket.id for c in first} & {c.ticket.id for c in second}


def test_a_lost_lease_fences_its_holder_off(rows: Rows) -> None:
    seeded = rows.run()
    rows.produced(seeded, 2)
    late = _claim(rows)
    _expire(rows)
    current = _claim(rows, holder="b")
    assert [c.ticket.number for c in current] == [2, 2]
    with rows.work() as session:
        assert gradings.renew(session, [c.ticket for c in late], TERM) == set()
        assert gradings.commit(session, [_graded(c) for c in late]) == set()
        assert gradings.fail(session, [_failed(c) for c in late]) == {}
    assert rows.states(seeded) == ["PRODUCED"] * 2
    with rows.work() as session:
        assert len(gradings.commit(session, [_graded(c) for c in current])) == 2


def test_a_grading_of_a_cancelled_rollout_leaves_nothing(rows: Rows) -> None:
    seeded = rows.run()
    claims = rows.produced(seeded, 2)
    claimed = _claim(rows)
    with rows.work() as session:
        rollouts.cancel(session, [claims[0].key], actor=Actor.REGISTRY, reason="test")
    with rows.work() as session:
        kept = gradings.commit(session, [_graded(c) for c in claimed])
    assert len(kept) == 1
    assert sorted(rows.states(seeded)) == ["CANCELLED", "SCORED"]
    assert rows.value("SELECT count(*) FROM scores") == 1
    assert rows.value("SELECT count(*) FROM gradings WHERE selected") == 1


def test_a_failure_is_tried_again_within_the_runs_budget_and_then_makes_the_rollout_invalid(
    rows: Rows,
) -> None:
    seeded = rows.run(grader_retries=2)
    rows.produced(seeded, 2)
    for state in ("QUEUED", "QUEUED", "FAILED"):
        claimed = _claim(rows)
        with rows.work() as session:
            assert set(gradings.fail(session, [_failed(c) for c in claimed]).values()) == {state}
    assert rows.states(seeded) == ["INVALID"] * 2
    assert rows.value("SELECT count(*) FROM rollouts WHERE reward IS NOT NULL") == 0
    assert rows.value("SELECT DISTINCT outcome FROM gradings") == "starved"


def test_a_grading_that_kills_its_graders_is_given_up(rows: Rows) -> None:
    seeded = rows.run(grader_retries=2)
    rows.produced(seeded, 2)
    spent = []
    for _ in range(4):
        spent.append(_claim(rows)[0].spent)
        _expire(rows)
    assert spent == [False, False, False, True]
    with rows.work() as session:
        states = gradings.fail(session, [_failed(c, Outcome.GRADER_FAILED) for c in _claim(rows)])
    assert set(states.values()) == {"FAILED"}


def test_what_is_released_is_claimed_again_without_charge(rows: Rows) -> None:
    rows.produced(rows.run(), 2)
    claimed = _claim(rows)
    with rows.work() as session:
        gradings.release(session, [c.ticket for c in claimed])
    assert len(_claim(rows)) == 2
    assert rows.value("SELECT sum(failures) FROM gradings") == 0


def test_a_failed_grading_waits_for_its_back_off(rows: Rows) -> None:
    rows.produced(rows.run(), 2)
    claimed = _claim(rows)
    with rows.work() as session:
        gradings.fail(
            session,
            [
                FailedGrading(ticket=c.ticket, outcome=Outcome.STARVED, reason="", jitter=0.999)
                for c in claimed
            ],
        )
        session.execute(text("UPDATE gradings SET not_before = clock_timestamp() + interval '1 hour'"))
    assert _claim(rows) == []


def test_what_waits_is_announced_once_until_it_grows_old(rows: Rows) -> None:
    rows.produced(rows.run(), 3)
    age = timedelta(seconds=30)
    with rows.work() as session:
        assert len(gradings.unannounced(session, age)) == 3
        assert gradings.unannounced(session, age) == []
        session.execute(text("UPDATE gradings SET announced_at = announced_at - interval '31 seconds'"))
        assert len(gradings.unannounced(session, age, limit=2)) == 2
    claimed = _claim(rows)
    with rows.work() as session:
        session.execute(text("UPDATE gradings SET announced_at = NULL"))
        assert gradings.unannounced(session, age) == []
    _expire(rows)
    with rows.work() as session:
        assert len(gradings.unannounced(session, age)) == len(claimed)


def test_the_maker_of_gradings_announces_them_itself(rows: Rows) -> None:
    claims = rows.produced(rows.run(), 2)
    with rows.work() as session:
        assert len(gradings.announced(session, [c.rollout_id for c in claims])) == 2
        assert gradings.unannounced(session, timedelta(seconds=30)) == []


def test_an_invalid_outcome_is_no_result_and_a_valid_one_no_failure(rows: Rows) -> None:
    rows.produced(rows.run(), 2)
    claimed, _ = _claim(rows)
    with rows.work() as session:
        with pytest.raises(ValueError, match="call fail"):
            gradings.commit(
                session,
                [
                    Graded(
                        ticket=claimed.ticket,
                        verifier="v",
                        outcome=Outcome.STARVED,
                        reward=0.0,
                        artifact="k",
                        scores=(),
                    )
                ],
            )
        with pytest.raises(ValueError, match="call commit"):
            gradings.fail(session, [_failed(claimed, Outcome.CODE_CPU_LIMIT)])


def test_specs_hold_both_halves_of_a_version(rows: Rows) -> None:
    version_id, _ = rows.task()
    with rows.work() as session:
        (spec,) = gradings.specs(session, [version_id])
    assert spec.public["instruction"] == "add 1\n"
    assert spec.hidden["oracle"]["answer"] == "return x+1"
