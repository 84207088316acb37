"""A runner as it runs: grants become produced attempts, and no end of a process loses one."""

from hashlib import sha256
from typing import Any

from sqlalchemy import text

from tiltyard.contracts.records import AttemptRecord, unpack
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor
from tiltyard.store import fleet, rollouts
from tiltyard.store.moves import Key
from tiltyard.testing.rows import traceparent

SLOW = {"script_latency_ms": "3600000"}


def test_grants_become_produced_attempts_with_a_record_and_a_grading(yard: Any) -> None:
    seeded = yard.seed()
    yard.start_rollout()
    _, incarnation = yard.start_runner()
    ids = yard.rows.group(seeded, 40)
    yard.rows.grant(ids, incarnation)
    yard.until_states(seeded, *["PRODUCED"] * 40)
    assert yard.rows.value("SELECT count(*) FROM gradings WHERE state = 'QUEUED'") == 40
    assert yard.rows.value("SELECT count(*) FROM gradings WHERE announced_at IS NULL") == 0
    assert yard.rows.value("SELECT DISTINCT oldest_version FROM rollouts") == 0
    with yard.rows.work() as session:
        attempt = session.execute(text("SELECT * FROM attempts WHERE rollout_id = :id"), {"id": ids[0]}).one()
    data = yard.objects.get(attempt.artifact)
    assert sha256(data).hexdigest() == attempt.sha256
    record = unpack(AttemptRecord, data, what=attempt.artifact)
    assert (record.outcome, record.answer) == (Outcome.COMPLETED, "return x+1")
    assert record.incarnation == incarnation
    (turn,) = record.turns
    assert len(turn.token_ids) == len(turn.logprobs) == len(turn.policy_versions) > 0
    _is_one_trace(record)


def _is_one_trace(record: AttemptRecord) -> None:
    """grant → episode → chat → the rollout service's own spans."""
    _, trace_id, grant, _ = traceparent(record.rollout_id).split("-")
    assert {str(s["trace_id"]) for s in record.spans} == {trace_id}
    names = {str(s["span_id"]): str(s["name"]).split()[0] for s in record.spans}
    parents = {names[str(s["span_id"])]: str(s["parent_id"]) for s in record.spans}
    assert parents["episode"] == grant
    assert names[parents["chat"]] == "episode"
    ancestor = parents["text_completion"]
    while names[ancestor] != "chat":
        ancestor = parents[names[ancestor]]


def test_a_runner_that_is_told_to_stop_gives_back_what_it_cannot_finish(yard: Any) -> None:
    seeded = yard.seed()
    yard.start_rollout(**SLOW)
    runner, incarnation = yard.start_runner()
    yard.rows.grant(yard.rows.group(seeded, 3), incarnation)
    yard.until_states(seeded, *["RUNNING"] * 3)
    assert runner.terminate() == 0
    assert yard.rows.states(seeded) == ["QUEUED"] * 3
    assert yard.rows.value("SELECT alive FROM runners") is False
    assert yard.rows.value("SELECT sum(infrastructure_failures) FROM rollouts") == 0


def test_a_killed_runner_is_superseded_by_the_next_on_its_node(yard: Any) -> None:
    seeded = yard.seed()
    rollout = yard.start_rollout(**SLOW)
    runner, first = yard.start_runner()
    ids = yard.rows.group(seeded, 3)
    yard.rows.grant(ids, first)
    yard.until_states(seeded, *["RUNNING"] * 3)
    runner.kill()
    rollout.kill()
    yard.start_rollout()
    _, second = yard.start_runner()
    yard.until_states(seeded, *["QUEUED"] * 3)
    yard.rows.grant(ids, second)
    yard.until_states(seeded, *["PRODUCED"] * 3)
    assert yard.rows.value("SELECT count(*) FROM gradings") == 3
    assert yard.rows.value("SELECT count(*) FROM attempts") == 6


def test_a_cancelled_rollout_is_stopped_and_the_others_go_on(yard: Any) -> None:
    seeded = yard.seed()
    yard.start_rollout(**SLOW)
    _, incarnation = yard.start_runner()
    ids = yard.rows.group(seeded, 2)
    yard.rows.grant(ids, incarnation)
    yard.until_states(seeded, "RUNNING", "RUNNING")
    with yard.rows.work() as session:
        fence = session.execute(
            text("SELECT fence FROM rollouts WHERE id = :id"), {"id": ids[0]}
        ).scalar_one()
        key = Key(rollout_id=ids[0], fence=fence)
        rollouts.cancel(session, [key], actor=Actor.REGISTRY, reason="a person said so")
    yard.until_states(seeded, "CANCELLED", "RUNNING")
    assert yard.rows.value("SELECT outcome FROM attempts WHERE rollout_id = :id", id=ids[0]) == "cancelled"


def test_a_runner_that_was_given_up_kills_what_it_holds_and_joins_anew(yard: Any) -> None:
    seeded = yard.seed()
    yard.start_rollout(**SLOW)
    _, first = yard.start_runner()
    ids = yard.rows.group(seeded, 2)
    yard.rows.grant(ids, first)
    yard.until_states(seeded, "RUNNING", "RUNNING")
    with yard.rows.work() as session:
        fleet.lose(session, first, reason="it fell silent")
    yard.processes.until(lambda: len(yard.incarnations()) == 2, "the runner joins anew")
    second = yard.incarnations()[1]
    yard.rows.grant(ids, second)
    yard.until_states(seeded, "RUNNING", "RUNNING")
    with yard.rows.work() as session:
        holders = session.execute(text("SELECT DISTINCT incarnation FROM rollouts")).scalars().all()
    assert holders == [second]


def test_a_rollout_service_that_is_away_is_the_platforms_failure(yard: Any) -> None:
    seeded = yard.seed(episode_seconds=1.0)
    _, incarnation = yard.start_runner()
    ids = yard.rows.group(seeded, 2)
    yard.rows.grant(ids, incarnation)
    yard.until_states(seeded, "QUEUED", "QUEUED")
    with yard.rows.work() as session:
        attempt = session.execute(text("SELECT * FROM attempts WHERE rollout_id = :id"), {"id": ids[0]}).one()
    assert attempt.outcome == "inference_failed"
    assert "1 s" in attempt.reason
    record = unpack(AttemptRecord, yard.objects.get(attempt.artifact), what=attempt.artifact)
    assert record.answer is None
    assert {str(s["name"]) for s in record.spans} >= {"episode", "chat"}
    assert yard.rows.value("SELECT sum(infrastructure_failures) FROM rollouts") == 2
    assert yard.rows.value("SELECT count(*) FROM gradings") == 0


def test_a_missing_setting_is_named(yard: Any) -> None:
    service = yard.processes.start("services.runner")
    assert service.process.wait(60) == 1
    assert "TILTYARD_ROLLOUT_URL" in service.log
