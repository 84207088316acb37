"""The ledger: agreement is silent, and every corruption is named with its rule and its row."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.core.ledger import (
    Discrepancy,
    GroupRecord,
    Records,
    RolloutRecord,
    StepRecord,
    TransitionRecord,
    reconcile,
)
from tiltyard.core.rollout import MOVES, State

Edit = Callable[[Records], Records]
PATH = (
    (None, State.QUEUED, 0),
    (State.QUEUED, State.GRANTED, 1),
    (State.GRANTED, State.RUNNING, 1),
    (State.RUNNING, State.PRODUCED, 1),
    (State.PRODUCED, State.SCORED, 1),
    (State.SCORED, State.READY, 1),
    (State.READY, State.TRAINING, 1),
    (State.TRAINING, State.TRAINED, 1),
)


def _chain(rollout: str) -> list[TransitionRecord]:
    return [
        TransitionRecord(rollout_id=rollout, seq=i + 1, start=start, end=end, fence=fence)
        for i, (start, end, fence) in enumerate(PATH)
    ]


def _balanced() -> Records:
    """Two groups of two; the first trained in step 1, the second in step 2."""
    members = {"g1": ("a", "b"), "g2": ("c", "d")}
    ids = [r for group in members.values() for r in group]
    return Records(
        groups_planned=2,
        groups=[GroupRecord(id=g, size=2) for g in members],
        rollouts=[
            RolloutRecord(id=r, group_id=g, state=State.TRAINED, fence=1, seq=len(PATH))
            for g, group in members.items()
            for r in group
        ],
        transitions=[t for r in ids for t in _chain(r)],
        attempts={r: frozenset({1}) for r in ids},
        selected=dict.fromkeys(ids, 1),
        steps=[
            StepRecord(number=1, committed=True, groups=("g1",), manifest=frozenset("ab")),
            StepRecord(number=2, committed=True, groups=("g2",), manifest=frozenset("cd")),
        ],
    )


def _transition(rollout: str, seq: int, **changes: object) -> Edit:
    def edit(records: Records) -> Records:
        return replace(
            records,
            transitions=[
                replace(t, **changes) if (t.rollout_id, t.seq) == (rollout, seq) else t  # type: ignore[arg-type]
                for t in records.transitions
            ],
        )

    return edit


def _rollout(rollout: str, **changes: object) -> Edit:
    def edit(records: Records) -> Records:
        rows = [replace(r, **changes) if r.id == rollout else r for r in records.rollouts]  # type: ignore[arg-type]
        return replace(records, rollouts=rows)

    return edit


def _step(number: int, **changes: object) -> Edit:
    def edit(records: Records) -> Records:
        rows = [replace(s, **changes) if s.number == number else s for s in records.steps]  # type: ignore[arg-type]
        return replace(records, steps=rows)

    return edit


def _without_transition(rollout: str, seq: int) -> Edit:
    return lambda records: replace(
        records, transitions=[t for t in records.transitions if (t.rollout_id, t.seq) != (rollout, seq)]
    )


CHAIN = "transitions chain"
CORRUPTIONS: dict[str, tuple[Edit, str, str, str]] = {
    "a group is missing": (
        lambda r: replace(r, groups_planned=3),
        "groups planned = groups",
        "run",
        "3 planned, 2 rows",
    ),
    "a rollout is missing": (
        lambda r: replace(r, rollouts=[x for x in r.rollouts if x.id != "a"]),
        "groups × G planned = rollouts",
        "group g1",
        "2 planned, 1 rollouts",
    ),
    "a transition is missing": (_without_transition("a", 4), CHAIN, "rollout a", "its row counts 8"),
    "the first transition is missing": (_without_transition("a", 1), CHAIN, "rollout a", "its row counts 8"),
    "the row counts too far": (_rollout("a", seq=9), CHAIN, "rollout a", "its row counts 9"),
    "a chain begins in the middle": (
        _transition("a", 1, start=State.RUNNING),
        CHAIN,
        "rollout a",
        "does not begin with being planned",
    ),
    "a transition begins elsewhere": (
        _transition("a", 5, start=State.QUEUED),
        CHAIN,
        "rollout a",
        "transition 5 begins at QUEUED, but 4 ended at PRODUCED",
    ),
    "a transition makes an illegal move": (
        lambda r: _transition("a", 5, end=State.TRAINED)(_transition("a", 6, start=State.TRAINED)(r)),
        CHAIN,
        "rollout a",
        "illegal move PRODUCED → TRAINED",
    ),
    "a fence falls": (_transition("a", 8, fence=0), CHAIN, "rollout a", "lowers the fence from 1 to 0"),
    "the row has another state": (
        _rollout("a", state=State.STALE),
        CHAIN,
        "rollout a",
        "ended at TRAINED under fence 1, its row says STALE under 1",
    ),
    "the row has another fence": (_rollout("a", fence=2), CHAIN, "rollout a", "its row says TRAINED under 2"),
    "an attempt is missing": (
        lambda r: replace(r, attempts={k: v for k, v in r.attempts.items() if k != "a"}),
        "each grant has its attempt",
        "rollout a",
        "granted under fences [1], attempts under []",
    ),
    "an attempt was never granted": (
        lambda r: replace(r, attempts={**r.attempts, "a": frozenset({1, 2})}),
        "each grant has its attempt",
        "rollout a",
        "granted under fences [1], attempts under [1, 2]",
    ),
    "no grading is selected": (
        lambda r: replace(r, selected={k: v for k, v in r.selected.items() if k != "a"}),
        "a scored rollout has one selected grading",
        "rollout a",
        "is TRAINED with 0 selected gradings",
    ),
    "two gradings are selected": (
        lambda r: replace(r, selected={**r.selected, "a": 2}),
        "a scored rollout has one selected grading",
        "rollout a",
        "is TRAINED with 2 selected gradings",
    ),
    "a trained group stands in no step": (
        _step(1, groups=()),
        "a trained rollout stands in one committed step",
        "rollout a",
        "its group g1 stands in 0 committed steps",
    ),
    "a group was trained twice": (
        lambda r: replace(r, steps=[*r.steps, StepRecord(number=3, committed=True, groups=("g1",))]),
        "a trained rollout stands in one committed step",
        "rollout a",
        "its group g1 stands in 2 committed steps",
    ),
    "a step was never committed": (
        _step(1, committed=False),
        "a trained rollout stands in one committed step",
        "rollout b",
        "stands in 0 committed steps",
    ),
    "a step trained nothing of a group": (
        lambda r: replace(r, steps=[*r.steps, StepRecord(number=3, committed=True, groups=("g3",))]),
        "a committed step trained its groups",
        "step 3",
        "group g3 has no TRAINED rollout",
    ),
    "a manifest lists another rollout": (
        _step(1, manifest=frozenset("abz")),
        "a step's manifest lists its rollouts",
        "step 1",
        "differs in rollouts ['z']",
    ),
    "a manifest lacks a rollout": (
        _step(1, manifest=frozenset("a")),
        "a step's manifest lists its rollouts",
        "step 1",
        "differs in rollouts ['b']",
    ),
    "a manifest cannot be read": (
        _step(1, manifest=None, manifest_error="no such object"),
        "a step's manifest lists its rollouts",
        "step 1",
        "no such object",
    ),
}


def test_records_that_agree_balance() -> None:
    assert reconcile(_balanced()) == []


def test_an_empty_run_balances() -> None:
    assert reconcile(Records(groups_planned=0)) == []


def test_a_manifest_that_was_not_looked_up_is_not_judged() -> None:
    assert reconcile(_step(1, manifest=None)(_balanced())) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_named_with_its_rule_and_row(name: str) -> None:
    edit, rule, row, detail = CORRUPTIONS[name]

    found = reconcile(edit(_balanced()))

    assert any(d.rule == rule and d.row == row and detail in d.detail for d in found), found


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_of_one_group_is_not_blamed_on_the_other(name: str) -> None:
    edit, *_ = CORRUPTIONS[name]

    assert not {d.row for d in reconcile(edit(_balanced()))} & {
        "rollout c",
        "rollout d",
        "group g2",
        "step 2",
    }


@given(st.data())
def test_any_walk_through_the_state_table_balances(data: st.DataObject) -> None:
    """Fences follow the table's own rule, attempts follow the grants."""
    transitions = [TransitionRecord(rollout_id="a", seq=1, start=None, end=State.QUEUED, fence=0)]
    for _ in range(data.draw(st.integers(0, 15))):
        transitions += _any_move(data, transitions[-1])
    last = transitions[-1]
    records = Records(
        groups_planned=1,
        groups=[GroupRecord(id="g", size=1)],
        rollouts=[RolloutRecord(id="a", group_id="g", state=last.end, fence=last.fence, seq=last.seq)],
        transitions=data.draw(st.permutations(transitions)),
        attempts={"a": frozenset(t.fence for t in transitions if t.end is State.GRANTED)},
        selected={"a": 1},
        steps=[StepRecord(number=1, committed=True, groups=("g",))] if last.end is State.TRAINED else [],
    )

    assert reconcile(records) == []


def _any_move(data: st.DataObject, last: TransitionRecord) -> list[TransitionRecord]:
    after = sorted(b for a, b in MOVES if a is last.end)
    if not after:
        return []
    end = data.draw(st.sampled_from(after))
    row = MOVES[last.end, end]
    actor = data.draw(st.sampled_from(sorted(row.actors)))
    fence = last.fence + row.raises_fence(actor)
    return [TransitionRecord(rollout_id="a", seq=last.seq + 1, start=last.end, end=end, fence=fence)]


def test_discrepancies_are_values() -> None:
    found = reconcile(replace(_balanced(), groups_planned=5))

    assert found == [Discrepancy(rule="groups planned = groups", row="run", detail="5 planned, 2 rows")]
