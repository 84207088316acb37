"""The ledger's rows: what `core.ledger` reconciles.

Guarantees: each kind of record is read from the table that was written separately for it.
Does not: read step manifests; whoever holds the object store adds them (`keys` says where they are)."""

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.core.ledger import GroupRecord, Records, RolloutRecord, StepRecord, TransitionRecord
from tiltyard.core.rollout import State


def load(session: Session, run_id: str) -> Records:
    """Every record of a run, without manifests, read in one snapshot if the transaction is REPEATABLE
    READ."""
    at = {"run": run_id}
    planned = session.execute(text("SELECT groups_planned FROM runs WHERE id = :run"), at).scalar_one()
    groups = session.execute(text("SELECT id, size FROM groups WHERE run_id = :run"), at)
    rollouts = session.execute(
        text("SELECT id, group_id, state, fence, seq FROM rollouts WHERE run_id = :run"), at
    )
    transitions = session.execute(
        text(
            'SELECT t.rollout_id, t.seq, t.start, t."end", t.fence FROM transitions t'
            " JOIN rollouts r ON r.id = t.rollout_id WHERE r.run_id = :run"
        ),
        at,
    )
    return Records(
        groups_planned=planned,
        groups=[GroupRecord(id=g.id, size=g.size) for g in groups],
        rollouts=[
            RolloutRecord(id=r.id, group_id=r.group_id, state=State(r.state), fence=r.fence, seq=r.seq)
            for r in rollouts
        ],
        transitions=[
            TransitionRecord(
                rollout_id=t.rollout_id,
                seq=t.seq,
                start=None if t.start is None else State(t.start),
                end=State(t.end),
                fence=t.fence,
            )
            for t in transitions
        ],
        attempts=_attempts(session, run_id),
        selected=_selected(session, run_id),
        steps=_steps(session, run_id),
    )


def _attempts(session: Session, run_id: str) -> dict[str, frozenset[int]]:
    rows = session.execute(
        text(
            "SELECT a.rollout_id, array_agg(a.fence) AS fences FROM attempts a"
            " JOIN rollouts r ON r.id = a.rollout_id WHERE r.run_id = :run GROUP BY a.rollout_id"
        ),
        {"run": run_id},
    )
    return {row.rollout_id: frozenset(row.fences) for row in rows}


def _selected(session: Session, run_id: str) -> dict[str, int]:
    rows = session.execute(
        text(
            "SELECT q.rollout_id, count(*) AS n FROM gradings q JOIN rollouts r ON r.id = q.rollout_id"
            " WHERE r.run_id = :run AND q.selected GROUP BY q.rollout_id"
        ),
        {"run": run_id},
    )
    return {row.rollout_id: row.n for row in rows}


def _steps(session: Session, run_id: str) -> list[StepRecord]:
    rows = session.execute(
        text(
            "SELECT s.step, s.state = 'COMMITTED' AS committed, array_remove(array_agg(g.group_id), NULL)"
            " AS groups"
            " FROM training_steps s LEFT JOIN step_groups g ON g.run_id = s.run_id AND g.step = s.step"
            " WHERE s.run_id = :run GROUP BY s.step, s.state ORDER BY s.step"
        ),
        {"run": run_id},
    )
    return [StepRecord(number=r.step, committed=r.committed, groups=tuple(r.groups)) for r in rows]


def manifest_keys(session: Session, run_id: str) -> dict[int, str]:
    """Committed step → key of its manifest."""
    rows = session.execute(
        text("SELECT step, manifest FROM training_steps WHERE run_id = :run AND state = 'COMMITTED'"),
        {"run": run_id},
    )
    return {row.step: row.manifest for row in rows}


def with_manifests(records: Records, found: Mapping[int, frozenset[str] | str]) -> Records:
    """The records with each step's trained rollouts, or the error that reading its manifest gave."""
    return replace(records, steps=[_with_manifest(s, found.get(s.number)) for s in records.steps])


def _with_manifest(step: StepRecord, found: frozenset[str] | str | None) -> StepRecord:
    if isinstance(found, str):
        return replace(step, manifest_error=found)
    return replace(step, manifest=found)
