"""The ledger: do records that were written separately agree?

Guarantees: each disagreement is named with its rule and row; agreement means that nothing was lost or
doubled.
Does not: mend anything."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tiltyard.core.rollout import MOVES, State


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    id: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    id: str
    group_id: str
    state: State
    fence: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRecord:
    rollout_id: str
    seq: int
    start: State | None
    end: State
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    number: int
    committed: bool
    groups: tuple[str, ...]
    manifest: frozenset[str] | None = None
    """Rollouts that the stored manifest lists as trained; None when it was not looked up."""
    manifest_error: str = ""
    """Why the manifest could not be read, when it could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Everything that is compared, of one run."""

    groups_planned: int
    groups: Sequence[GroupRecord] = ()
    rollouts: Sequence[RolloutRecord] = ()
    transitions: Sequence[TransitionRecord] = ()
    attempts: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """Rollout → fences that have an attempt's row."""
    selected: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rollout → number of selected gradings."""
    steps: Sequence[StepRecord] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """One disagreement."""

    rule: str
    row: str
    detail: str


def reconcile(records: Records) -> list[Discrepancy]:
    """Every disagreement among the records; empty when the ledger balances."""
    return [
        *_planned(records),
        *_chains(records),
        *_attempts(records),
        *_graded(records),
        *_trained(records),
        *_manifests(records),
    ]


def _planned(records: Records) -> Iterator[Discrepancy]:
    if len(records.groups) != records.groups_planned:
        yield Discrepancy(
            rule="groups planned = groups",
            row="run",
            detail=f"{records.groups_planned} planned, {len(records.groups)} rows",
        )
    sizes = Counter(r.group_id for r in records.rollouts)
    for group in records.groups:
        if sizes[group.id] != group.size:
            yield Discrepancy(
                rule="groups × G planned = rollouts",
                row=f"group {group.id}",
                detail=f"{group.size} planned, {sizes[group.id]} rollouts",
            )


def _chains(records: Records) -> Iterator[Discrepancy]:
    chains: dict[str, list[TransitionRecord]] = {}
    for transition in records.transitions:
        chains.setdefault(transition.rollout_id, []).append(transition)
    for rollout in records.rollouts:
        chain = sorted(chains.get(rollout.id, []), key=lambda t: t.seq)
        for detail in _faults(rollout, chain):
            yield Discrepancy(rule="transitions chain", row=f"rollout {rollout.id}", detail=detail)


def _faults(rollout: RolloutRecord, chain: Sequence[TransitionRecord]) -> Iterator[str]:
    if [t.seq for t in chain] != list(range(1, rollout.seq + 1)):
        yield f"has transitions {[t.seq for t in chain]}, its row counts {rollout.seq}"
        return
    if not chain or chain[0].start is not None or chain[0].end is not State.QUEUED:
        yield "does not begin with being planned"
        return
    for before, after in pairwise(chain):
        if after.start is not before.end:
            yield f"transition {after.seq} begins at {after.start}, but {before.seq} ended at {before.end}"
        elif (before.end, after.end) not in MOVES:
            yield f"transition {after.seq} makes the illegal move {before.end} → {after.end}"
        if after.fence < before.fence:
            yield f"transition {after.seq} lowers the fence from {before.fence} to {after.fence}"
    if chain[-1].end is not rollout.state or chain[-1].fence != rollout.fence:
        yield (
            f"ended at {chain[-1].end} under fence {chain[-1].fence},"
            f" its row says {rollout.state} under {rollout.fence}"
        )


def _attempts(records: Records) -> Iterator[Discrepancy]:
    granted: dict[str, set[int]] = {}
    for transition in records.transitions:
        if transition.end is State.GRANTED:
            granted.setdefault(transition.rollout_id, set()).add(transition.fence)
    for rollout in sorted(granted.keys() | records.attempts.keys()):
        fences, rows = granted.get(rollout, set()), set(records.attempts.get(rollout, ()))
        if fences != rows:
            yield Discrepancy(
                rule="each grant has its attempt",
                row=f"rollout {rollout}",
                detail=f"granted under fences {sorted(fences)}, attempts under {sorted(rows)}",
            )


SCORED_STATES = frozenset(
    {
        State.SCORED,
        State.READY,
        State.TRAINING,
        State.TRAINED,
        State.EVALUATED,
        State.FILTERED,
        State.STALE,
    }
)


def _graded(records: Records) -> Iterator[Discrepancy]:
    for rollout in records.rollouts:
        count = records.selected.get(rollout.id, 0)
        if rollout.state in SCORED_STATES and count != 1:
            yield Discrepancy(
                rule="a scored rollout has one selected grading",
                row=f"rollout {rollout.id}",
                detail=f"is {rollout.state} with {count} selected gradings",
            )


def _trained(records: Records) -> Iterator[Discrepancy]:
    stands = Counter(g for s in records.steps if s.committed for g in s.groups)
    for rollout in records.rollouts:
        if rollout.state is State.TRAINED and stands[rollout.group_id] != 1:
            yield Discrepancy(
                rule="a trained rollout stands in one committed step",
                row=f"rollout {rollout.id}",
                detail=f"its group {rollout.group_id} stands in {stands[rollout.group_id]} committed steps",
            )
    members = _trained_by_group(records.rollouts)
    for step in records.steps:
        for group in step.groups if step.committed else ():
            if not members.get(group):
                yield Discrepancy(
                    rule="a committed step trained its groups",
                    row=f"step {step.number}",
                    detail=f"group {group} has no TRAINED rollout",
                )


def _trained_by_group(rollouts: Iterable[RolloutRecord]) -> dict[str, set[str]]:
    members: dict[str, set[str]] = {}
    for rollout in rollouts:
        if rollout.state is State.TRAINED:
            members.setdefault(rollout.group_id, set()).add(rollout.id)
    return members


def _manifests(records: Records) -> Iterator[Discrepancy]:
    members = _trained_by_group(records.rollouts)
    for step in records.steps:
        rule, row = "a step's manifest lists its rollouts", f"step {step.number}"
        if step.committed and step.manifest_error:
            yield Discrepancy(rule=rule, row=row, detail=step.manifest_error)
        elif step.committed and step.manifest is not None:
            expected = {r for g in step.groups for r in members.get(g, set())}
            if odd := expected ^ step.manifest:
                yield Discrepancy(rule=rule, row=row, detail=f"differs in rollouts {sorted(odd)[:5]}")
